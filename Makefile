# build, demo, test and bench do all the set-up they need; each is safe to run again.
.PHONY: build demo test test-hardware test-host bench screens serve

# Everything that is installed, in target/dist: berth-portal, berth-worker, berth-gateway, libberth_nvml_sim.so, web/.
build:
	@end2end/tools/build.sh

# Portal, one worker with simulated boards, a gateway, an operator and an organization with credit; built fast, in
# target/demo. PORT, DATA.
demo:
	@end2end/tools/build.sh demo
	@DIST=$${DIST:-target/demo} exec python3 end2end/tools/demo.py

# Every test, on both database engines and in a real browser; the last line has the counts.
test:
	@end2end/tools/test.sh

# What every NVML must keep, on this host's own boards, then the whole path with jobs and a service on them: prints its
# steps and the omitted ones. It changes no MIG setting unless BERTH_HARDWARE_MIG=1 is given (docs/hardware.md). A filter without a
# match passes in cargo, so awk checks the count. WORKER_ARGS, DATA, TORCH_PYTHON.
test-hardware: build
	@BERTH_HARDWARE=1 cargo test --quiet -p berth-worker --test worker conformance:: -- --nocapture | \
		awk '{ print; fflush() } /^test result: ok\. [1-9]/ { passed = 1 } END { exit !passed }'
	@python3 end2end/tools/real_boards.py
	@DATA=$${DATA:+$$DATA-service} exec python3 end2end/tools/real_service.py

# A bare Debian in a virtual machine becomes a node, as docs/workers.md says, and is restarted, upgraded and cut off
# under its jobs; then the worker's tests run in it. Two more with a network between them scan each other from jobs.
# Needs root, QEMU and debootstrap. HOST_SUITE, HOST_ONLY=node|tests|network.
test-host: build
	@exec python3 end2end/tools/bare_host.py

# The benchmarks: a table under a calibration of this machine, and target/bench.json. ONLY=name runs some.
# ONLY=jobs runs HyperQueue too, where hq is on the PATH, and ONLY=gateway HAProxy and nginx (docs/pace.md).
bench: build
	@ONLY="$(ONLY)" exec python3 end2end/tools/bench.py

# Pictures of all screens at three widths, light and dark, and a contact sheet for each theme, in target/screens.
# BOARDS=1000: the pages with boards and jobs, at 1,000 boards and 100,000 jobs, in target/screens-1000.
screens:
	@end2end/tools/build.sh demo
	@DIST=$${DIST:-target/demo} BOARDS="$(BOARDS)" exec node end2end/tools/contact_sheets.mjs

# The portal alone, with its data in ./data.
serve: build
	@exec target/dist/berth-portal serve --data "$${DATA:-./data}" --listen "127.0.0.1:$${PORT:-8080}" --web target/dist/web
