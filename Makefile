# build, demo, test and bench do all the set-up they need; each is safe to run again.
.PHONY: build demo test bench serve

# Everything that is installed, in target/dist: berth, berth-worker, libberth_nvml_sim.so, web/.
build:
	@end2end/tools/build.sh

# Portal, one worker with simulated boards, an operator and an organization with credit. PORT, DATA.
demo: build
	@exec python3 end2end/tools/demo.py

# Every test, on both database engines and in a real browser; the last line has the counts.
test:
	@end2end/tools/test.sh

# The benchmarks: a table, and target/bench.json. ONLY=name runs some.
bench: build
	@ONLY="$(ONLY)" exec python3 end2end/tools/bench.py

# The portal alone, with its data in ./data.
serve: build
	@exec target/dist/berth serve --data "$${DATA:-./data}" --listen "127.0.0.1:$${PORT:-8080}" --web target/dist/web
