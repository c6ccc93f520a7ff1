"""far_messages.py FAR_ENDS WAN_LAB - messages of random sizes, encrypted, both ways over an emulated link between sites
that loses packets and lets some overtake others, and of which all streams and single ones are cut for a while and healed:
nothing is lost, doubled, out of order or torn, and every operation ends in one event (far_ends.c checks them). 1,000,000
messages with LONGHAUL_TORTURE=1."""
import os
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests", "lab"))
from lab import Lab, LabMissing, Link

TORTURE = os.environ.get("LONGHAUL_TORTURE", "") not in ("", "0")
WAN = "3"


def main(program, emulator):
    count = 1000000 if TORTURE else 12000
    link = Link(0, 1, delay=0.004, rate=1e9, loss=0.002, late=0.01, queue=1e6, mtu=9000)
    with Lab(emulator, [link]) as lab:
        command = [program, "tcp", *lab.spaces, f"messages={count}", WAN, "0", "0", "bind=wan0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        ended = threading.Event()

        def cut_now_and_then():
            cuts = 0
            while not ended.wait(5 if cuts > 1 else 0.7):
                (lab.single if cuts % 2 else lab.cut)(0)
                time.sleep(1.5)
                lab.heal(0)
                cuts += 1
            print(f"cut {cuts} times for 1.5 s, all streams and one in turn")

        cutter = threading.Thread(target=cut_now_and_then)
        cutter.start()
        out, _ = process.communicate()
        ended.set()
        cutter.join()
        there, back = lab.counts()[0]
        print(out.strip())
        print(f"{count} messages each way; of {there.packets + back.packets} packets {there.lost + back.lost} were lost "
              f"and {there.cut + back.cut} cut")
        if process.returncode == 0 and (there.lost == 0 or there.late == 0 or there.cut + back.cut == 0):
            print("the link was too good: nothing was lost or late, or it was never cut")
            return 1
        return process.returncode


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:3]))
    except LabMissing as why:
        print("skipped:", why)
        sys.exit(77)
