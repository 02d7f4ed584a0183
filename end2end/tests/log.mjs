// The log of a job as people read it: times beside its lines, a jump to a time, a filter by level, and its download.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import {
  ENDED, bearer, inOrg, jobIn, launchBrowser, openPage, settled, signUp, startDemo, waitFor,
} from './harness.mjs';

const SLICE = 'h100-80gb.1g.10gb';
const LINES = [
  'INFO start',
  'WARNING:root:slow',
  'ERROR:root:no such file',
  '  File "train.py", line 3',
  'epoch 1/2 error 0.25',
];
const TEXT = LINES.map((line) => `${line}\n`).join('');

let demo, browser, person, written, silent;

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  person = await signUp(demo.url);
  const operator = bearer(demo.url, demo.operator.token);
  await operator('POST', `/operator/orgs/${person.org}/credits`, { amount_micros: 20_000_000, memo: 'Welcome' });
  const submit = (name, script) =>
    person.api('POST', `/orgs/${person.org}/jobs`, { name, offering: SLICE, script, max_duration_s: 60 });
  written = (await submit('writes', `cat <<'END'\n${TEXT}END`)).id;
  silent = (await submit('silent', 'true')).id;
  for (const job of [written, silent]) await jobIn(person.api, person.org, job, ['succeeded']);
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const visible = (page) => page.locator('.log__line:visible .log__text').allInnerTexts();
const notice = (page) => page.locator('.log__notice');
const level = (page, name) => page.getByRole('radio', { name, exact: true });

/** Opens the page of a job at a width. */
async function open(job, width = 1440) {
  const { page, faults, close } = await openPage(browser, demo.url, {
    headers: person.headers, viewport: { width, height: 900 },
  });
  await page.goto(inOrg(person.slug, `/jobs/${job}`));
  await settled(page);
  return { page, faults, close };
}

/** Waits for the last line of the real log. */
const complete = (page) => page.getByRole('log').getByText(LINES.at(-1)).waitFor();

/** Answers the stream of the log with these events. */
async function played(page, events) {
  const body = events.map(([event, data]) => `event: ${event}\ndata: ${data}\n\n`).join('');
  await page.route(/\/logs\?rank=0&attempt=1&from=/, (route) =>
    route.fulfill({ status: 200, contentType: 'text/event-stream', body }));
}

/** Types a time of a zone and presses Enter. */
async function jump(page, time, zone = 'UTC') {
  const input = page.getByLabel(`Time, ${zone}`);
  await input.fill(time);
  await input.press('Enter');
}

/** No finding of axe, and nothing wider than the window. */
async function check(page) {
  assert.deepEqual(await axeFindings(page), []);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(wide <= 0, `${wide} px too wide`);
}

test('levels are counted, marked and filtered', async () => {
  const { page, faults, close } = await open(written);
  await complete(page);
  assert.deepEqual(await visible(page), LINES);
  await level(page, 'Warnings and errors 3').check();
  await waitFor('the warnings and errors', async () => (await visible(page)).length === 3);
  await level(page, 'Errors 2').check();
  await waitFor('the errors', async () => (await visible(page)).length === 2);
  assert.deepEqual(await visible(page), LINES.slice(2, 4));
  assert.equal(await page.locator('.log__line--warning').count(), 1);
  // The search counts the lines that are shown.
  await page.getByRole('searchbox', { name: 'Search log' }).fill('root');
  await page.getByText('1 of 1', { exact: true }).waitFor();
  await level(page, 'All').check();
  await waitFor('all lines', async () => (await visible(page)).length === LINES.length);
  await page.getByText(/^\d of 2$/).waitFor();
  assert.deepEqual(faults, []);
  await close();
});

test('times are shown on request, remembered, and part of one download', async () => {
  const { page, faults, close } = await open(written);
  await complete(page);
  const timed = page.locator('.log__text[data-time]');
  const elements = () => page.locator('.log__view *').count();
  const before = await elements();
  assert.equal(await timed.count(), 0);
  assert.equal(await page.getByRole('link', { name: 'Download with timestamps' }).isVisible(), false);
  await page.getByRole('checkbox', { name: 'Timestamps' }).check();
  await waitFor('the times', async () => (await timed.count()) === LINES.length);
  assert.match(await timed.first().getAttribute('data-time'), /^\d\d:\d\d:\d\d\.\d$/);
  assert.equal(await elements(), before);
  await page.reload();
  await complete(page);
  await waitFor('the times after a reload', async () => (await timed.count()) === LINES.length);
  assert.equal(await page.getByRole('checkbox', { name: 'Timestamps' }).isChecked(), true);

  const fetched = async (name) => {
    const [download] = await Promise.all([
      page.waitForEvent('download'), page.getByRole('link', { name }).click(),
    ]);
    return readFileSync(await download.path(), 'utf8');
  };
  assert.equal(await fetched(`Download log ${TEXT.length} bytes`), TEXT);
  const lines = (await fetched('Download with timestamps')).trimEnd().split('\n');
  assert.deepEqual(lines.map((line) => line.slice(25)), LINES);
  const now = Date.now();
  for (const line of lines) {
    const at = Date.parse(line.slice(0, 24));
    assert.ok(at <= now + 1_000 && at > now - 3_600_000, line);
  }
  assert.deepEqual(faults, []);
  await close();
});

test('a jump selects the line nearest to a time, and a late time says so', async () => {
  const { page, faults, close } = await openPage(browser, demo.url, { headers: person.headers });
  const text = Array.from({ length: 300 }, (_, at) => `line ${at + 1}\n`).join('');
  // Ten seconds for each hundred lines.
  const from = [0, text.indexOf('line 101\n'), text.indexOf('line 201\n')];
  const start = Date.parse('2026-11-20T14:20:00Z');
  const times = { from, at_ms: [start, start + 10_000, start + 20_000] };
  await played(page, [['log', JSON.stringify({ from: 0, text, times })], ['end', 'complete']]);
  await page.goto(inOrg(person.slug, `/jobs/${written}`));
  await settled(page);
  await page.getByRole('log').getByText('line 300').waitFor();
  for (const [time, result, selected] of [
    ['14:20:10', 'Line 101, 14:20:10.0 UTC', '101'],
    ['14:20:14', 'Line 200, 14:20:10.0 UTC', '200'],
    ['2026-11-20 14:19', 'Line 1, 14:20:00.0 UTC', '1'],
    ['2026-11-20T14:20:19Z', 'Line 201, 14:20:20.0 UTC', '201'],
    ['15:00', 'No line is so late. The last line is from 14:20:20.0 UTC.', '201'],
    ['soon', 'Enter a time such as 14:20:05 or 2026-11-20 14:20.', '201'],
  ]) {
    await jump(page, time);
    await notice(page).getByText(result, { exact: true }).waitFor();
    const line = page.locator('.log__line--on');
    assert.equal(await line.locator('.log__no').innerText(), selected, time);
    // The line is in the visible part.
    const [inner, outer] = [await line.boundingBox(), await page.getByRole('log').boundingBox()];
    assert.ok(inner.y >= outer.y - 1 && inner.y + inner.height <= outer.y + outer.height + 1, time);
  }
  await level(page, 'Errors 0').check();
  await notice(page).getByText('No errors so far.').waitFor();
  assert.deepEqual(faults, []);
  await close();
});

test('times and jumps are in the zone of the browser, and in UTC by choice', async () => {
  const { page, faults, close } = await openPage(browser, demo.url, {
    headers: person.headers, timezoneId: 'Europe/Berlin', viewport: { width: 1440, height: 900 },
  });
  // The clocks of Berlin go back between both lines.
  const exact = ['2026-10-25T00:30:00.000Z', '2026-10-25T01:30:00.000Z'];
  const times = { from: [0, 7], at_ms: exact.map(Date.parse) };
  await played(page, [['log', JSON.stringify({ from: 0, text: 'summer\nwinter\n', times })], ['end', 'complete']]);
  await page.goto(inOrg(person.slug, `/jobs/${written}`));
  await settled(page);
  // The portal renders the second load with the zone.
  await page.reload();
  await settled(page);
  await page.getByRole('log').getByText('winter').waitFor();
  await page.getByRole('checkbox', { name: 'Timestamps' }).check();
  const shown = (...texts) => waitFor(`the times ${texts}`, async () => {
    const all = await page.locator('.log__text[data-time]').evaluateAll((lines) =>
      lines.map((line) => [line.dataset.time, line.previousElementSibling.title]));
    return JSON.stringify(all) === JSON.stringify(texts.map((text, at) => [text, exact[at]]));
  });
  await shown('02:30:00.0', '02:30:00.0');
  for (const [time, result] of [
    ['02:30', 'Line 1, 02:30:00.0 UTC+2'],
    ['2026-10-25T01:30:00Z', 'Line 2, 02:30:00.0 UTC+1'],
    ['2026-10-25 03:00', 'No line is so late. The last line is from 02:30:00.0 UTC+1.'],
    ['2026-03-29 02:30', 'The clocks go forward on this day and skip this time. Enter an earlier or a later time.'],
  ]) {
    await jump(page, time, 'Europe/Berlin');
    await notice(page).getByText(result, { exact: true }).waitFor();
  }
  const zone = page.getByLabel('Time zone', { exact: true }).and(page.locator(':visible'));
  await zone.selectOption('utc');
  await shown('00:30:00.0', '01:30:00.0');
  await jump(page, '01:30');
  await notice(page).getByText('Line 2, 01:30:00.0 UTC', { exact: true }).waitFor();
  assert.deepEqual(faults, []);
  await close();
});

test('a log without recorded times says so', async () => {
  const { page, close } = await openPage(browser, demo.url, { headers: person.headers });
  await played(page, [['log', JSON.stringify({ from: 0, text: 'old\n' })], ['end', 'complete']]);
  await page.goto(inOrg(person.slug, `/jobs/${written}`));
  await settled(page);
  await page.getByRole('log').getByText('old').waitFor();
  await page.getByRole('checkbox', { name: 'Timestamps' }).check();
  await jump(page, '14:20');
  await notice(page).getByText('These lines have no recorded times.').waitFor();
  assert.equal(await page.locator('.log__text[data-time]').count(), 0);
  await close();
});

test('the box of a silent job is small', async () => {
  for (const width of [1440, 390]) {
    const { page, close } = await open(silent, width);
    await page.getByText('The job never wrote any output.').waitFor();
    await page.locator('.log--empty').waitFor();
    const { height } = await page.getByRole('log').boundingBox();
    assert.ok(height < 80, `${height} px at ${width}`);
    await close();
  }
});

test('the log of an earlier attempt is chosen and downloaded', async () => {
  const { id } = await person.api('POST', `/orgs/${person.org}/jobs`, {
    name: 'again', offering: SLICE, max_duration_s: 60, retry: { max: 1, on: ['exit'] },
    script: 'test "$BERTH_ATTEMPT" = 2 && exit 0; echo cause of the failure; exit 1',
  });
  await jobIn(person.api, person.org, id, ['succeeded']);
  const { page, faults, close } = await open(id, 390);
  await page.getByText('This attempt never wrote any output. Choose another attempt above.').waitFor();
  const attempt = page.getByRole('combobox', { name: 'Attempt' });
  assert.deepEqual(await attempt.locator('option').allInnerTexts(), ['2, latest', '1']);
  await check(page);
  await attempt.selectOption('1');
  await page.getByRole('log').getByText('cause of the failure').waitFor();
  const [download] = await Promise.all([
    page.waitForEvent('download'), page.getByRole('link', { name: /^Download log/ }).click(),
  ]);
  assert.equal(download.suggestedFilename(), `${id}-attempt-1-rank-0.log`);
  assert.equal(readFileSync(await download.path(), 'utf8'), 'cause of the failure\n');
  await attempt.selectOption('2, latest');
  await page.getByText('This attempt never wrote any output.').waitFor();
  assert.deepEqual(faults, []);
  await close();
});

test('the log has no finding of axe at both widths and in both themes', async () => {
  for (const width of [1440, 390]) {
    const { page, close } = await open(written, width);
    await complete(page);
    await page.getByRole('checkbox', { name: 'Timestamps' }).check();
    for (const colorScheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme });
      await check(page);
    }
    await close();
  }
});

test('several windows of one browser stay usable, and the last one with the focus is live', async () => {
  const submit = (name) => person.api('POST', `/orgs/${person.org}/jobs`, {
    name, offering: SLICE, script: 'n=0; while :; do n=$((n+1)); echo "line $n"; sleep 0.2; done', max_duration_s: 300,
  });
  const jobs = [await submit('first'), await submit('second')].map((job) => job.id);
  for (const job of jobs) await jobIn(person.api, person.org, job, ['running']);
  const { page: first, faults, close } = await open(jobs[0]);
  const context = first.context();
  const badges = (page, text) => page.getByRole('status').getByText(text, { exact: true });
  await badges(first, 'live').first().waitFor();
  const second = await context.newPage();
  await second.goto(inOrg(person.slug, `/jobs/${jobs[1]}`));
  await second.getByRole('log').getByText(/^line \d+$/).first().waitFor();
  await badges(first, 'paused, other windows are live').first().waitFor();
  // The former window is used again.
  await first.evaluate(() => window.dispatchEvent(new Event('focus')));
  await badges(first, 'paused, other windows are live').first().waitFor({ state: 'detached' });
  await badges(second, 'paused, other windows are live').first().waitFor();
  // Requests have connections in both.
  for (const [page, job] of [[second, jobs[1]], [first, jobs[0]]]) {
    await page.getByRole('button', { name: 'Stop job' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Stop job' }).click();
    await jobIn(person.api, person.org, job, ENDED, 20_000);
  }
  assert.deepEqual(faults, []);
  await close();
});
