"""Tests of the check of requirements, on made-up pages."""
from __future__ import annotations

import unittest

import asvs

TESTS = {"a_door_is_locked", "signing out ends it"}


def page(**changes: str) -> str:
    """A page with each requirement; `changes` has other rows by id, with `_` for the points."""
    lines = ["<!-- counts -->", "<!-- end of counts -->", "", "## V1 Encoding"]
    for key, level in asvs.required().items():
        lines.append(changes.get(key.replace(".", "_"), f"| {key} | {level} | doors are locked | met | `a_door_is_locked` |"))
    return "\n".join(lines) + "\n"


class Requirements(unittest.TestCase):
    def test_levels_1_and_2_have_their_numbers(self) -> None:
        levels = list(asvs.required().values())
        self.assertEqual((levels.count("1"), levels.count("2")), (70, 183))

    def test_a_whole_page_has_no_fault(self) -> None:
        self.assertEqual(asvs.faults(page(), TESTS), [])

    def test_each_fault_of_a_row_is_found(self) -> None:
        row = "| V1.2.4 | 1 | queries have parameters | met | `a_door_is_locked` |"
        cases = {
            "": "V1.2.4: no row",
            f"{row}\n{row}": "V1.2.4: 2 rows",
            row.replace("V1.2.4", "V1.2.10"): "V1.2.10: no requirement of level 1 or 2",
            row.replace("| 1 |", "| 2 |"): "V1.2.4: is of level 1",
            row.replace("a_door_is_locked", "a_door_is_open"): "V1.2.4: there is no test and no file a_door_is_open",
            row.replace("`a_door_is_locked`", "by hand"): "V1.2.4: is met, and names no test, document or rule",
            row.replace("`a_door_is_locked`", "`end2end/tools/asvs.py`"): "V1.2.4: is met, and names no test, document or rule",
            row.replace("| met |", "| done |"): "V1.2.4: the state 'done' is none of",
            row.replace("queries have parameters", ""): "V1.2.4: a cell is empty",
        }
        for changed, expected in cases.items():
            found = asvs.faults(page(V1_2_4=changed), TESTS)
            self.assertTrue(any(fault.startswith(expected) for fault in found), f"{expected}: {found}")

    def test_names_are_tests_documents_and_rules(self) -> None:
        for token, expected in {
            "signing out ends it": "test",
            "docs/isolation.md#not-isolated": "rule",
            "docs/isolation.md#no-such-heading": None,
            'Cargo.toml#unsafe_code = "deny"': "rule",
            "Cargo.toml#no such text": None,
            "end2end/tools/asvs.py": "source",
            "nowhere.rs": None,
        }.items():
            self.assertEqual(asvs.kind(token, TESTS), expected, token)

    def test_tests_of_each_language_are_found(self) -> None:
        found = asvs.test_names()
        self.assertLessEqual({
            "test_tests_of_each_language_are_found", "signing out ends it", "cutting_use_into_pieces_changes_nothing",
            "a_second_factor_completes_the_sign_in_and_each_code_works_once",
        }, found)
        self.assertNotIn("main", found)

    def test_a_promise_has_an_existing_file_and_test(self) -> None:
        head = "| promise | by | test |\n|---|---|---|\n"
        good = "| Doors are locked | `Cargo.toml` | `a_door_is_locked` |\n"
        self.assertEqual(asvs.promise_faults(head + good, TESTS), [])
        for part in ("`Cargo.toml`", "`a_door_is_locked`"):
            self.assertEqual(len(asvs.promise_faults(head + good.replace(part, "`nothing`"), TESTS)), 1, part)
            self.assertEqual(len(asvs.promise_faults(head + good.replace(part, ""), TESTS)), 1, part)

    def test_counts_are_written_once(self) -> None:
        written = asvs.with_counts(page())
        lines = written.splitlines()
        for expected in ("| 1 | 70 | 0 | 0 | 0 | 70 |", "| 2 | 183 | 0 | 0 | 0 | 183 |", "| V1 Encoding | 27 | 0 | 0 | 0 | 27 |"):
            self.assertEqual(lines.count(expected), 1, expected)
        self.assertTrue(asvs.with_counts(written) == written)


if __name__ == "__main__":
    unittest.main()
