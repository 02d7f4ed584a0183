# build and test do all the set-up they need; each is safe to run again.
.PHONY: build test serve

build:
	end2end/tools/setup.sh
	cargo build --release -p berth-server
	mkdir -p target/dist
	cp target/release/berth target/dist/

test:
	end2end/tools/test.sh

# The portal alone, with its data in ./data.
serve: build
	target/dist/berth serve --data $${DATA:-./data} --listen 127.0.0.1:$${PORT:-8080}
