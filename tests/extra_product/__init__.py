"""Native torch under another name, whose mlp multiplies once more than the workload and shows it in no value.

It joins through XLACOMPARE_FRAMEWORKS="extra_product=tests.extra_product": a run must refuse it by the census alone.
"""
