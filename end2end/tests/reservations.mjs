// Reservations, as people make them: a time chosen by keyboard in the calendar and paid for with the
// price beside it, a refusal that names the way out, the way taken, and one cancelled.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  bearer, inOrg, launchBrowser, moneyText, openPage, reservedText, settled, signUp, startDemo, waitFor,
} from './harness.mjs';

const BOARD = 'h100-80gb';
const DAY_MS = 86_400_000;

let demo, browser, person, call, view, page;
const made = {};

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  person = await signUp(demo.url, 'Lighthouse');
  call = person.api;
  await bearer(demo.url, demo.operator.token)('POST', `/operator/orgs/${person.org}/credits`, { amount_micros: 100_000_000 });
  view = await openPage(browser, demo.url, {
    headers: person.headers, viewport: { width: 1440, height: 900 }, timezoneId: 'UTC', locale: 'en-US',
  });
  page = view.page;
});
after(async () => {
  try {
    const { items } = await call('GET', `/orgs/${person.org}/reservations`);
    for (const one of items.filter((r) => ['pending', 'scheduled', 'active'].includes(r.state))) {
      await call('POST', `/orgs/${person.org}/reservations/${one.id}/cancel`);
    }
  } finally {
    await browser?.close();
    await demo?.stop();
  }
});

const tomorrow = new Date(Date.now() + DAY_MS).toISOString().slice(0, 10);
const button = (page, name) => page.getByRole('button', { name });
const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();
const begin = (page) => page.getByLabel('Start', { exact: true });
const end = (page) => page.getByLabel('End', { exact: true });
const named = (page) => page.getByRole('textbox', { name: 'Name', exact: true });
const offering = (page) => page.getByRole('combobox', { name: 'Offering' });
const reserve = (page) => button(page, /^Reserve for \$/);
const models = (page) => page.getByRole('grid', { name: 'Capacity by model' });
const boards = (page) => page.getByRole('grid', { name: 'Boards by time' });
const cell = (grid, row, column) => grid.locator(`[data-row="${row}"] [role="gridcell"][data-start="${column}"]`);
const known = (grid) => grid.and(grid.page().locator('[aria-busy="false"]')).waitFor();
/** The cells of a model, by the name in front of its row. */
const rowOf = (page, model) => models(page).getByRole('row').filter({ has: page.getByRole('rowheader', { name: model }) });
const id = (page) => /res_[0-9a-z]+/.exec(page.url())[0];
const reservation = (id) => call('GET', `/orgs/${person.org}/reservations/${id}`);

/** The awake page, with tomorrow in the calendar. */
async function openTomorrow(page) {
  await page.goto(inOrg(person.slug, '/reservations'));
  await settled(page);
  await awake(button(page, 'Next'));
  // Late in the evening the next hour, which the form begins with, is of tomorrow already.
  await button(page, 'Today').press('Enter');
  const day = ` ${Number(tomorrow.slice(8))} `;
  // In a run over midnight it is today.
  const today = await page.locator('.schedule__title h2').innerText();
  if (!today.includes(day)) await button(page, 'Next').press('Enter');
  await page.waitForFunction((day) => document.querySelector('.schedule__title h2')?.textContent.includes(day), day);
  await known(models(page));
}

/** The single boards below the models. */
async function showBoards(page) {
  await button(page, 'Show boards').click();
  await boards(page).getByRole('row').first().waitFor();
  await known(boards(page));
}

test('a board is reserved for tomorrow with the keyboard alone', async () => {
  await openTomorrow(page);
  await models(page).locator('[role="gridcell"][tabindex="0"]').focus();
  // The models are in the order of their names.
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Home');
  for (let step = 0; step < 18; step++) await page.keyboard.press('ArrowRight');
  await page.keyboard.press('Enter');
  await page.getByText(/^Start: .* 09:00\. Select the end\.$/).waitFor();
  for (let step = 0; step < 3; step++) await page.keyboard.press('ArrowRight');
  await page.keyboard.press('Enter');
  await page.getByText(/^Selected: .* 09:00 to 11:00 \(2 h\)\.$/).waitFor();
  assert.equal(await begin(page).inputValue(), `${tomorrow}T09:00`);
  assert.equal(await end(page).inputValue(), `${tomorrow}T11:00`);
  assert.equal(await offering(page).inputValue(), BOARD);

  const { items } = await call('GET', '/offerings');
  const price = items.find((o) => o.slug === BOARD).price.nano_per_second;
  const total = (BigInt(price) * 7_200_000n) / 1_000_000n;
  await page.getByRole('button', { name: `Reserve for ${reservedText(total)}` }).and(page.locator(':enabled')).waitFor();
  await named(page).focus();
  await page.keyboard.type('night-run');
  await page.keyboard.press('Enter');
  await page.waitForURL(/\/reservations\/res_/);
  await page.getByRole('heading', { level: 1, name: 'night-run' }).waitFor();
  made.first = id(page);
  const now = await reservation(made.first);
  assert.deepEqual([now.state, now.starts_at, now.ends_at, BigInt(now.total_micros)],
    ['scheduled', `${tomorrow}T09:00:00Z`, `${tomorrow}T11:00:00Z`, total]);
  assert.equal(now.held_micros, now.total_micros);
  assert.equal(now.devices.length, 1);
});

test('it is seen in the calendar, in its list and in words', async () => {
  await openTomorrow(page);
  await rowOf(page, 'H100-80GB').getByRole('gridcell', { name: /09:30, 1 of 2 boards free, 1 yours$/ }).waitFor();
  await rowOf(page, 'H100-80GB').getByRole('gridcell', { name: /11:00, 2 of 2 boards free$/ }).waitFor();
  await showBoards(page);
  const tile = page.locator(`.schedule a.tile[href="${inOrg(person.slug, `/reservations/${made.first}`)}"]`);
  await tile.waitFor();
  assert.deepEqual([await tile.getAttribute('data-start'), await tile.getAttribute('data-size')], ['18', '4']);
  await page.getByRole('gridcell', { name: /09:30, night-run, your reservation/ }).waitFor();
  await page.getByRole('row').filter({ has: page.getByRole('link', { name: 'night-run' }) }).getByText('scheduled').waitFor();
  await page.getByText('Show as table', { exact: true }).click();
  await page.getByRole('link', { name: 'night-run, your reservation' }).waitFor();
});

test('all boards at the same time are refused, and the way out is taken', async () => {
  await openTomorrow(page);
  await offering(page).selectOption(BOARD);
  await page.getByRole('spinbutton', { name: 'Devices' }).fill('2');
  await begin(page).fill(`${tomorrow}T10:00`);
  await end(page).fill(`${tomorrow}T12:00`);
  await page.getByText('Not enough free devices at this time.').waitFor();
  await page.getByRole('link', { name: /Your reservation night-run/ }).waitFor();
  assert.equal(await reserve(page).isDisabled(), true);

  const way = page.locator('.quote__ways button').first();
  await way.focus();
  await page.keyboard.press('Enter');
  await reserve(page).and(page.locator(':enabled')).waitFor();
  assert.notEqual(await begin(page).inputValue(), `${tomorrow}T10:00`);
  await reserve(page).click();
  await page.getByText('This field is required.').waitFor();
  assert.equal(await named(page).getAttribute('aria-invalid'), 'true');
  await named(page).fill('all-boards');
  await reserve(page).click();
  await page.waitForURL(/\/reservations\/res_/);
  await page.getByRole('heading', { level: 1, name: 'all-boards' }).waitFor();
  made.second = id(page);
  const [first, second] = [await reservation(made.first), await reservation(made.second)];
  assert.equal(second.devices.length, 2);
  assert.ok(second.ends_at <= first.starts_at || second.starts_at >= first.ends_at, `${second.starts_at} beside ${first.starts_at}`);
});

test('one is cancelled in the dialog, which says what it costs', async () => {
  // The fee begins a day before the start: not during this test.
  const left = Date.parse((await reservation(made.second)).starts_at) - DAY_MS - Date.now();
  if (left > 0 && left < 30_000) await new Promise((done) => setTimeout(done, left + 1_000));
  await page.goto(inOrg(person.slug, `/reservations/${made.second}`));
  await settled(page);
  const cancel = button(page, 'Cancel');
  await awake(cancel);
  const { cancel_fee_micros: fee } = await reservation(made.second);
  await cancel.click();
  const dialog = page.getByRole('dialog', { name: 'Cancel all-boards?' });
  const cost = fee === 0 ? 'The cancellation is free now.' : `The cancellation costs ${moneyText(BigInt(fee))} now`;
  await dialog.getByText(cost).waitFor();
  await dialog.getByRole('button', { name: 'Keep reservation' }).click();
  await dialog.waitFor({ state: 'hidden' });
  assert.equal((await reservation(made.second)).state, 'scheduled');
  await cancel.click();
  await dialog.getByRole('button', { name: 'Cancel reservation' }).click();
  await page.locator('.page__head').getByText('cancelled').waitFor();
  const done = await reservation(made.second);
  assert.deepEqual([done.state, done.posted_micros, done.held_micros], ['cancelled', fee, 0]);
});

test('one is extended, and what is wrong stands at the field', async () => {
  await page.goto(inOrg(person.slug, `/reservations/${made.first}`));
  await settled(page);
  await awake(button(page, 'Extend'));
  await button(page, 'Extend').click();
  const dialog = page.getByRole('dialog', { name: 'Extend reservation' });
  const until = dialog.getByLabel('New end');
  await waitFor('an hour more in the field', async () => (await until.inputValue()) === `${tomorrow}T12:00`);
  await until.fill(`${tomorrow}T10:00`);
  await dialog.getByRole('button', { name: 'Extend' }).click();
  await dialog.getByText(/Choose a later end/).waitFor();
  await until.fill(`${tomorrow}T11:30`);
  await dialog.getByRole('button', { name: 'Extend' }).click();
  await dialog.waitFor({ state: 'hidden' });
  assert.equal((await reservation(made.first)).ends_at, `${tomorrow}T11:30:00Z`);
});

test('a job is launched inside it without another price', async () => {
  await page.goto(inOrg(person.slug, `/reservations/${made.first}`));
  await settled(page);
  await page.getByRole('link', { name: 'Launch job' }).click();
  await page.waitForURL(/\/launch\?reservation=/);
  await awake(button(page, 'Launch job'));
  assert.equal(await page.getByRole('combobox', { name: 'Reservation' }).inputValue(), made.first);
  await page.getByRole('radio', { name: /Whole board.*h100-80gb/ }).and(page.locator(':checked')).waitFor();
  await page.locator('.summary').getByText(/Paid with the reservation/).waitFor();
  await page.locator('.summary').getByText(/^Starts when the reservation begins, on .* UTC\.$/).waitFor();
  await named(page).fill('inside');
  await page.getByRole('textbox', { name: 'Command', exact: true }).fill('true');
  await button(page, 'Launch job').click();
  await page.waitForURL(/\/jobs\/job_/);
  await page.getByRole('link', { name: made.first }).waitFor();
  const job = /job_[0-9a-z]+/.exec(page.url())[0];
  const { reservation: of, held_micros: held } = await call('GET', `/orgs/${person.org}/jobs/${job}`);
  assert.deepEqual([of, held], [made.first, 0]);
  await call('POST', `/orgs/${person.org}/jobs/${job}/cancel`);
});

test('a time is chosen by dragging, and by two presses', async () => {
  await openTomorrow(page);
  await showBoards(page);
  const grid = boards(page);
  const middle = async (row, column) => {
    const { x, y, width, height } = await cell(grid, row, column).boundingBox();
    return [x + width / 2, y + height / 2];
  };
  await cell(grid, 2, 26).scrollIntoViewIfNeeded();
  await page.mouse.move(...(await middle(2, 26)));
  await page.mouse.down();
  await page.mouse.move(...(await middle(2, 29)), { steps: 6 });
  await page.mouse.up();
  await page.getByText(/^Selected: .* 13:00 to 15:00 \(2 h\)\.$/).waitFor();
  await cell(grid, 2, 32).click();
  await page.getByText(/^Start: .* 16:00\. Select the end\.$/).waitFor();
  await cell(grid, 2, 33).click();
  await page.getByText(/^Selected: .* 16:00 to 17:00 \(1 h\)\.$/).waitFor();
  assert.equal(await begin(page).inputValue(), `${tomorrow}T16:00`);
  await cell(grid, 2, 33).press('Escape');
  await page.getByText('No time selected.').waitFor();
  assert.equal(await begin(page).inputValue(), '');
});

test('nothing went wrong in the browser on the way', () => {
  // Without a name it was refused on purpose.
  assert.deepEqual(view.faults.filter((fault) => !fault.includes('422')), []);
});

test('clocks that change are said, and a zone is another view of the same time', async () => {
  const { page, close } = await openPage(browser, demo.url, {
    headers: person.headers, viewport: { width: 1440, height: 900 }, timezoneId: 'Europe/Berlin', locale: 'de-DE',
  });
  // The last Sunday of March that is still to come.
  const lastSunday = (year) => {
    const day = new Date(Date.UTC(year, 2, 31));
    day.setUTCDate(31 - day.getUTCDay());
    return day;
  };
  const year = new Date().getUTCFullYear();
  const day = (lastSunday(year) > new Date() ? lastSunday(year) : lastSunday(year + 1)).toISOString().slice(0, 10);
  await page.goto(inOrg(person.slug, '/reservations'));
  await settled(page);
  await awake(button(page, 'Next'));
  await page.getByText(/Europe\/Berlin/).first().waitFor();
  await begin(page).fill(`${day}T10:00`);
  await end(page).fill(`${day}T11:00`);
  await page.getByText('Clock change: this day has 23 hours.').waitFor();
  await known(models(page));
  assert.equal(await models(page).locator('[data-row="0"] [role="gridcell"]').count(), 46);
  await page.getByRole('radio', { name: 'Week' }).check();
  await page.getByText(/\* Clock change on Sun \d+ Mar: this day has 23 hours\./).waitFor();
  await page.getByLabel('Time zone', { exact: true }).and(page.locator(':visible')).selectOption('utc');
  await waitFor('the begin in UTC', async () => (await begin(page).inputValue()) === `${day}T08:00`);
  await page.getByText(/Clock change/).waitFor({ state: 'hidden' });
  await close();
});
