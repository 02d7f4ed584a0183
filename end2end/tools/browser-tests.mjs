// Starts one demo, runs every test of end2end/tests against it in turn, and stops it.
// usage: browser-tests.mjs [FILE...]
import { spawn } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT, startDemo } from '../tests/harness.mjs';

const folder = join(ROOT, 'end2end/tests');
const named = process.argv.slice(2);
// What tests use, and what is none by itself.
const HELPERS = ['harness.mjs', 'stripe.mjs'];
// By name: what a folder means to `node --test` differs between versions of node.
const files = named.length
  ? named
  : readdirSync(folder).filter((f) => f.endsWith('.mjs') && !HELPERS.includes(f)).sort().map((f) => join(folder, f));

const demo = await startDemo();
let code = 1;
try {
  // One at a time: they share the boards.
  const argv = ['--test', '--test-reporter=tap', '--test-concurrency=1', ...files];
  const tests = spawn(process.execPath, argv, { env: { ...process.env, BERTH_DEMO: demo.file }, stdio: 'inherit' });
  // Ctrl-C reaches the tests too; this process stays to stop the demo.
  process.on('SIGINT', () => {});
  process.on('SIGTERM', () => tests.kill('SIGTERM'));
  code = await new Promise((done) => tests.on('close', (exit) => done(exit ?? 1)));
} finally {
  await demo.stop();
}
process.exitCode = code;
