#!/usr/bin/env python3
"""Goal: `evenkeel place` places over devices, nodes and racks as it is told, says how far weights travel, and refuses
what cannot be. Method: the program on small tables worked out by hand."""
import json
import unittest

import harness
from harness import folder, run

LOADS = "60,12,10,10,10,10\n10,10,60,12,10,10\n"


class Place(unittest.TestCase):
    def setUp(self):
        context = folder()
        self.tmp = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        self.loads = self.tmp / "loads.csv"
        self.loads.write_text(LOADS)

    def place(self, *arguments, slots=8, devices=4):
        return run("place", "--loads", self.loads, "--slots", slots, "--devices", devices, *arguments)

    def answer(self, *arguments, **more):
        done = self.place("--json", *arguments, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def refused(self, code, text, *arguments, **more):
        done = self.place(*arguments, **more)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn(text, done.stderr)

    def placement(self, *arguments, **more):
        out = self.tmp / "out.csv"
        self.answer("--out", out, *arguments, **more)
        return [list(map(int, line.split(","))) for line in out.read_text().split()]

    def test_racks_alone_change_nothing(self):
        plain = self.placement("--nodes", 4)
        self.assertEqual(self.placement("--nodes", 4, "--racks", 2), plain)
        self.assertEqual(self.placement("--nodes", "1,1,2", "--racks", "2,1"), plain)

    def test_hot_experts_lie_on_two_racks(self):
        for layer, hot in enumerate([[0, 1], [2, 3]]):
            slots = self.placement("--nodes", 4, "--racks", 2, "--spread", 2, "--spread-over", "rack")[layer]
            for expert in hot:
                self.assertEqual({slot // 4 for slot in range(8) if slots[slot] == expert}, {0, 1}, slots)
        answer = self.answer("--nodes", 4, "--racks", 2, "--spread", 2, "--spread-over", "rack")
        self.assertEqual(answer["together"], 0)
        text = self.place("--nodes", 4, "--racks", 2, "--spread", 2, "--spread-over", "rack").stdout
        self.assertIn("4 devices, 4 nodes, 2 racks", text)
        self.assertIn("together    0 of 4 hot experts, in all layers, lie on one rack", text)

    def test_moves_are_told_by_distance(self):
        """A slot of device 3 holds what its device holds already and is given to expert 0, which only device 0 has."""
        self.loads.write_text("90,10,10,10,10,10,10\n")
        old = self.tmp / "old.csv"
        old.write_text("0,1,2,3,4,5,6,6\n")
        for topology, place in ((["--nodes", 1], "same_node"), (["--nodes", 4], "same_rack"),
                                (["--nodes", 4, "--racks", 2], "across_racks"),
                                (["--nodes", "3,1", "--racks", "1,1"], "across_racks"),
                                (["--nodes", "3,1"], "same_rack")):
            with self.subTest(topology):
                answer = self.answer(*topology, "--from", old, "--max-moves", 13, "--expert-bytes", 1000)
                self.assertEqual(answer["moves"], 1)
                self.assertEqual({k: n for k, n in answer["moved"].items() if n}, {place: 1})
                self.assertEqual({k: n for k, n in answer["moved_bytes"].items() if n}, {place: 1000})
        text = self.place("--nodes", 4, "--racks", 2, "--from", old, "--max-moves", 13).stdout
        self.assertIn("moved       0 inside their node, 0 inside their rack, 1 across racks, 0 from storage", text)
        self.assertNotIn("moved_bytes", self.answer("--from", old))
        self.assertNotIn("moved", self.answer())

    def test_a_rebalance_spreads(self):
        old = self.tmp / "old.csv"
        old.write_text("0,1,0,2,3,4,5,1\n2,1,2,3,4,5,0,1\n")
        wish = ["--nodes", 4, "--racks", 2, "--spread", 1, "--from", old, "--max-moves", 100, "--target", 100]
        self.assertEqual(self.answer(*wish)["together"], 0)  # two nodes, and nothing else is asked for
        self.assertEqual(self.answer(*wish)["moves"], 0)
        answer = self.answer(*wish, "--spread-over", "rack")
        self.assertEqual(answer["together"], 0)
        self.assertGreater(answer["moves"], 0)

    def test_groups_have_a_tighter_bound(self):
        """Three experts of 10 on a node of two devices: without a spare slot two of them meet."""
        self.loads.write_text("10,10,10,1,1,1\n")
        nodes = ["--nodes", 2, "--groups", 2]
        answer = self.answer(*nodes, slots=8)
        self.assertAlmostEqual(answer["tight_bound"], 15 / (33 / 4))
        self.assertAlmostEqual(answer["lower_bound"], 15 / (33 / 4))
        self.assertAlmostEqual(answer["worst"], 15 / (33 / 4))
        self.loads.write_text("12,4,4,4,1,1,1,1,1,1,1,1\n")
        answer = self.answer(*nodes, slots=12, devices=6)
        self.assertAlmostEqual(answer["lower_bound"], 12 / (32 / 6))
        self.assertAlmostEqual(answer["tight_bound"], 13 / (32 / 6))
        self.assertAlmostEqual(answer["worst"], 13 / (32 / 6))
        self.assertIn("tight bound 2.4375", self.place(*nodes, slots=12, devices=6).stdout)
        self.assertNotIn("tight bound", self.place("--nodes", 2).stdout)

    def test_refused(self):
        self.refused(65, "4 nodes do not divide evenly over 3 racks", "--nodes", 4, "--racks", 3)
        self.refused(65, "number of racks 5 is outside 1..4", "--nodes", 4, "--racks", 5)
        self.refused(65, "--nodes lists 5 devices, but there are 4", "--nodes", "2,3")
        self.refused(65, "--racks lists 3 nodes, but there are 4", "--nodes", 4, "--racks", "1,2")
        self.refused(65, "--spread needs two racks; say how many by --racks", "--nodes", 2, "--spread", 1,
                     "--spread-over", "rack")
        self.refused(65, "--spread needs two nodes; say how many by --nodes", "--spread", 1)
        self.refused(65, "--spread 3 needs as many slots beyond one per expert, but there are 2", "--nodes", 2,
                     "--spread", 3)
        self.refused(65, "leave one of them out", "--nodes", 2, "--groups", 2, "--spread", 1)
        for bad in ("0", "2,", ",2", "1,0", "1,x", "-1,2", "1 ,1", "2000"):
            self.refused(2, "--racks is", "--nodes", 4, "--racks", bad)
        self.refused(2, "--spread-over is node or rack, not 'row'", "--spread-over", "row")
        self.refused(2, "--expert-bytes", "--expert-bytes", 0)


if __name__ == "__main__":
    harness.main()
