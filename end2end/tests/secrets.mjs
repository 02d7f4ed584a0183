// Secrets as people keep them: set, named in a job, replaced, deleted, and never shown again.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { inOrg, launchBrowser, openPage, settled, signUp, startDemo } from './harness.mjs';

let demo, browser;
before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const VALUE = 'tok_Zq7w9x2m4k';
const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();

test('a secret is set, replaced and deleted, and its value never comes back', async () => {
  const owner = await signUp(demo.url);
  const { page } = await openPage(browser, demo.url, { headers: owner.headers });
  const heard = [];
  page.on('response', async (response) => heard.push(await response.text().catch(() => '')));
  await page.goto(inOrg(owner.slug, '/secrets'));
  await settled(page);
  await page.getByText('No secrets yet.').waitFor();
  const create = page.getByRole('button', { name: 'Create secret' });
  await awake(create);
  // Dots alone would lead to another address.
  await page.getByRole('textbox', { name: 'Name' }).fill('..');
  await create.click();
  await page.locator('#secret-name[aria-invalid="true"]').waitFor();
  await page.getByRole('textbox', { name: 'Name' }).fill('hf-token');
  await page.getByRole('textbox', { name: 'Value' }).fill('short');
  await create.click();
  await page.locator('#secret-value[aria-invalid="true"]').waitFor();
  await page.getByRole('textbox', { name: 'Value' }).fill(VALUE);
  await create.click();
  const row = page.getByRole('table', { name: 'Secrets' }).getByRole('row').filter({ hasText: 'hf-token' });
  await row.getByText('never').waitFor();
  assert.equal(await page.getByRole('textbox', { name: 'Value' }).inputValue(), '', 'it is nowhere in the page');

  await page.getByRole('button', { name: 'Replace the value of hf-token' }).click();
  await page.getByRole('textbox', { name: 'Value' }).fill(`${VALUE}-second`);
  await page.getByRole('button', { name: 'Replace value' }).click();
  await row.getByRole('cell', { name: '2', exact: true }).waitFor();
  await page.reload();
  await settled(page);
  await row.getByRole('cell', { name: '2', exact: true }).waitFor();
  assert.ok(!(await page.content()).includes(VALUE));

  // The launch form offers it by its name.
  await page.goto(inOrg(owner.slug, '/launch'));
  await awake(page.getByRole('button', { name: 'Launch job' }));
  await page.getByText('Secrets, volumes, ports and labels', { exact: true }).click();
  await page.getByRole('button', { name: 'Add secret' }).click();
  const secret = page.getByRole('group', { name: 'Secret 1', exact: true });
  await secret.getByRole('combobox', { name: 'Secret', exact: true }).selectOption('hf-token');
  await page.getByRole('button', { name: 'Launch job' }).click();
  await secret.getByText('Secret 1, variable: Enter the name of a variable, such as HF_TOKEN.').waitFor();
  await secret.getByRole('textbox', { name: 'Secret variable' }).fill('HF_TOKEN');
  await secret.getByRole('combobox', { name: 'Kind' }).selectOption('Variable');
  await page.getByText('Copy as curl', { exact: true }).click();
  await page.getByText(/"secrets":\[\{"name":"hf-token","env":"HF_TOKEN"\}\]/).first().waitFor();
  await secret.getByRole('combobox', { name: 'Kind' }).selectOption('File');
  await page.getByText(/"secrets":\[\{"name":"hf-token","file":"HF_TOKEN"\}\]/).first().waitFor();
  await page.goto(inOrg(owner.slug, '/secrets'));
  await settled(page);

  const remove = page.getByRole('button', { name: 'Delete hf-token' });
  await awake(remove);
  await remove.click();
  await page.getByRole('button', { name: 'Keep secret' }).click();
  await remove.click();
  await page.getByRole('button', { name: 'Delete secret' }).click();
  await page.getByText('No secrets yet.').waitFor();
  assert.deepEqual(heard.filter((text) => text.includes(VALUE)), [], 'no answer has it');
});
