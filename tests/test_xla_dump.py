"""What XLA's dump of a compilation shows, when two programs count as the same, which flag ended a process."""

from __future__ import annotations

import json

from xlacompare.core import program, xla_dump, xla_options
from xlacompare.launch import hints


def test_what_a_dump_shows(tmp_path):
    """Names of modules, places in sources, folders and file names are no change; a line of code is."""
    llvm = "; ModuleID = 'a'\nsource_filename = \"b\"\ndefine void @f() {\n  %1 = fadd float %x, %y\n}\n"

    def dump(name: str, code: str = llvm, hlo: str = "add") -> xla_dump.Evidence:
        folder = tmp_path / f"{name}{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        program_of = f"HloModule m{name}\n ROOT %r = f32[] {hlo}(%a)\n"
        (folder / f"module_{name}.debug_options").write_text(f'xla_dump_to: "{folder}"\nxla_y: {name != "a"}\n')
        (folder / f"module_{name}.cpu_after_optimizations.txt").write_text(program_of)
        (folder / f"module_{name}.k.ir-with-opt.ll").write_text(code.replace("'a'", f"'{name}'"))
        (folder / f"module_{name}.before_optimizations.txt").write_text(name)
        return xla_dump.read(folder)

    one, other = dump("a"), dump("b")
    assert (one.program, one.code) == (other.program, other.code) and one.options == ("xla_y: False",)
    assert xla_dump.Evidence.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    assert xla_dump.in_force("xla_y", "1", other, one) is True and xla_dump.in_force("xla_z", "1", other, one) is False
    assert xla_dump.in_force("xla_z", "", other, one) is None, "an empty list is in no dump"
    assert dump("a", llvm.replace("fadd", "fadd fast")).code != one.code and dump("a", hlo="mul").program != one.program
    empty = tmp_path / "empty"
    empty.mkdir()
    assert xla_dump.read(empty) == xla_dump.Evidence() == xla_dump.Evidence.from_dict(None)
    assert xla_dump.in_force("xla_y", "1", xla_dump.Evidence(), one) is None


def test_names_and_sources_are_not_the_program():
    one = (
        "HloModule jit_f, is_scheduled=true\n\nStackFrames\n1 {file_location_id=1}\n\nENTRY %main.1 {\n"
        '  ROOT %add.1 = f32[] add(%x, %y), metadata={op_name="jit(f)/{add}" stack_frame_id=3}\n}\n'
    )
    other = one.replace("jit_f", "jit_g").replace("location_id=1", "location_id=2").replace("add.1", "add.7")
    assert program.optimised_fingerprint(one) == program.optimised_fingerprint(other.replace("{add}", "x"))
    assert program.optimised_fingerprint(one) != program.optimised_fingerprint(one.replace("add(", "subtract("))


def test_a_log_that_ends_with_every_flag(tmp_path):
    log = tmp_path / "log"
    log.write_text("F x parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_foo=1\n" + "--xla_bar\n" * 9000)
    assert hints.refused_flag(log) == f"{xla_options.UNKNOWN} (--xla_foo=1)"
    log.write_text("E x] Couldn't interpret value banana for flag xla_bar.\nF Check failed\n")
    assert hints.refused_flag(log) == f"{xla_options.REFUSED} (xla_bar=banana)"
    log.write_text("Segmentation fault\n")
    assert hints.refused_flag(log) == hints.refused_flag(tmp_path / "none") == ""
