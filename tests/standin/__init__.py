"""A stand-in framework: the NumPy tape behind the adapter interface, with faults on request.

It joins through XLACOMPARE_FRAMEWORKS="standin=tests.standin", so that the launcher, the records and the commands are
tested in seconds, in every state that a framework can get into.
STANDIN_FAULT="ARM:FAULT" plants one fault (see `framework.FAULTS`); STANDIN_SLOW="ARM:FACTOR" repeats the work.
"""
