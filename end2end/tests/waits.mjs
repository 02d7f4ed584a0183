// A waiting job names its own job in the way, and offers a change with which it starts now.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  bearer, boardsFree, ENDED, jobIn, launchBrowser, openPage, settled, signUp, startDemo, waitFor,
} from './harness.mjs';

const [WHOLE, TAKEN, HALF] = ['h100-80gb', 'h100-80gb.4g.40gb', 'h100-80gb.3g.40gb'];

let demo, browser, operator, person, view, page, holds, waits;

before(async () => {
  // One board: the larger half is taken, so the job for the whole board waits, and the other half is free.
  demo = await startDemo({ FLEET: '1xH100-80GB' });
  browser = await launchBrowser();
  operator = bearer(demo.url, demo.operator.token);
  person = await signUp(demo.url);
  await operator('POST', `/operator/orgs/${person.org}/credits`, { amount_micros: 20_000_000, memo: 'Welcome' });
  view = await openPage(browser, demo.url, { headers: person.headers, viewport: { width: 1440, height: 900 } });
  page = view.page;
  const submit = (body) => person.api('POST', `/orgs/${person.org}/jobs`, body);
  holds = await submit({ name: 'holds-half', offering: TAKEN, command: ['sleep', '300'], max_duration_s: 600 });
  await jobIn(person.api, person.org, holds.id, ['running']);
  waits = await submit({ name: 'wants-all', offering: WHOLE, command: ['true'], max_duration_s: 60 });
  await offered();
});
after(async () => {
  try {
    for (const job of [waits, holds].filter(Boolean)) {
      await person.api('POST', `/orgs/${person.org}/jobs/${job.id}/cancel`);
    }
    await boardsFree(operator);
  } finally {
    await browser?.close();
    await demo?.stop();
  }
});

/** The half board is free and suggested. */
const offered = () => waitFor('the suggestion', async () => {
  const why = await person.api('GET', `/orgs/${person.org}/jobs/${waits.id}/explanation`);
  return why.suggested_changes?.[0]?.label === '3g.40gb, free now';
});
const suggestion = () => page.getByRole('link', { name: 'Launch with this change: 3g.40gb, free now', exact: true });
const refreshed = () => page.waitForResponse((answer) => answer.url().endsWith(`/jobs/${waits.id}/explanation`));

test('the own job in the way is linked, and a refresh leaves the focus and the place of the link', async () => {
  await page.goto(`/jobs/${waits.id}`);
  await settled(page);
  const link = page.getByRole('list', { name: 'In the way' }).getByRole('link', { name: 'holds-half', exact: true });
  await link.focus();
  const before_ = await suggestion().boundingBox();
  await refreshed();
  await refreshed();
  assert.ok(await link.evaluate((one) => one === document.activeElement));
  assert.deepEqual(await suggestion().boundingBox(), before_);
  await page.getByText('This job stays in the queue until you cancel it.').waitFor();
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { level: 1, name: 'holds-half' }).waitFor();
});

test('no part of the explanation is wider than a phone', async () => {
  await page.setViewportSize({ width: 390, height: 844 });
  await page.goto(`/jobs/${waits.id}`);
  await suggestion().waitFor();
  const { width } = await suggestion().boundingBox();
  assert.ok(width <= 390);
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth));
  await page.setViewportSize({ width: 1440, height: 900 });
});

test('3g.40gb is free now: the changed job is launched and starts, and the other waits on', async () => {
  await page.goto(`/jobs/${waits.id}`);
  await settled(page);
  await suggestion().click();
  await page.waitForURL(/\/launch\?from=job_.*offering=h100-80gb\.3g\.40gb/);
  await page.getByText(`Filled from the submission of wants-all. Changed: ${HALF}.`).waitFor();
  await page.getByRole('button', { name: 'Launch job' }).and(page.locator(':enabled')).click();
  await page.waitForURL(/\/jobs\/job_/);
  const [small] = /job_[0-9a-z]+/.exec(page.url());
  assert.notEqual(small, waits.id);
  const ended = await jobIn(person.api, person.org, small, ENDED);
  assert.deepEqual([ended.state, ended.offering], ['succeeded', HALF]);
  await jobIn(person.api, person.org, waits.id, ['queued']);
});

test('the form shows the same, and uses the change', async () => {
  await offered();
  await page.goto(`/launch?from=${waits.id}`);
  await page.getByRole('button', { name: 'Launch job' }).and(page.locator(':enabled')).waitFor();
  const summary = page.getByRole('complementary', { name: 'Price and start' });
  await summary.getByText(/changes? lets? the job start now/).click();
  await summary.getByRole('link', { name: 'holds-half', exact: true }).waitFor();
  await summary.getByRole('button', { name: 'Use this change: 3g.40gb, free now', exact: true }).click();
  await summary.getByText('immediately', { exact: true }).waitFor();
  assert.ok(await page.locator(`input[name="offering"][value="${HALF}"]`).isChecked());
});

test('nothing went wrong in the browser on the way', () => {
  assert.deepEqual(view.faults, []);
});
