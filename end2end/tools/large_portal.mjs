// A portal of the example `large` with its people, for measurements and pictures.
import { api, inOrg, signIn, signUp, startLargePortal } from '../tests/harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
const OFFERING = 'h100-80gb';
export const BOARDS = 1_000;
/** The pause between two changes of jobs in ms. */
const CHANGE_MS = 250;

/**
 * A thousand boards with readings, 100,000 jobs, a price, a tenant and an operator. `change` submits and cancels jobs
 * of the tenant until the returned function is called.
 */
export async function startFilledPortal(program) {
  const portal = await startLargePortal(program);
  try {
    await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
    const [tenant, other] = [await signUp(portal.url, 'Longshore'), await signUp(portal.url, 'Kelda')];
    await portal.fill(tenant.org, other.org);
    const headers = await signIn(portal.url, OPERATOR);
    const operator = api(portal.url, headers);
    await operator('POST', '/operator/prices', { offering: OFFERING, per_hour_micros: 2_990_000 });
    await operator('POST', `/operator/orgs/${tenant.org}/credits`, { amount_micros: 5_000_000_000, memo: 'Welcome' });
    const { items: [running] } = await tenant.api('GET', `/orgs/${tenant.org}/jobs?state=running&limit=1`);
    const change = () => {
      let isOver = false;
      const submitAndCancel = async () => {
        // It waits for another job, so that it takes no board.
        const job = { name: 'changes', offering: OFFERING, script: 'true', max_duration_s: 60, depends_on: [{ job: running.id }] };
        const { id } = await tenant.api('POST', `/orgs/${tenant.org}/jobs`, job);
        await tenant.api('POST', `/orgs/${tenant.org}/jobs/${id}/cancel`);
      };
      const changes = (async () => {
        while (!isOver) {
          await submitAndCancel();
          await new Promise((done) => setTimeout(done, CHANGE_MS));
        }
      })();
      return async () => {
        isOver = true;
        await changes;
      };
    };
    return { ...portal, tenant, operator: { headers }, running: running.id, change };
  } catch (error) {
    await portal.stop();
    throw error;
  }
}

/** The pages that show boards and jobs: a name, who looks, the path, the link of the rail, and what the page shows. */
export const PAGES = [
  { name: 'home', role: 'tenant', path: '', link: 'Home', shows: 'main tbody tr' },
  { name: 'jobs', role: 'tenant', path: '/jobs', link: 'Jobs', shows: 'main tbody tr' },
  { name: 'reservations', role: 'tenant', path: '/reservations', link: 'Reservations', shows: 'main :is(table, [role="grid"])' },
  { name: 'cluster', role: 'tenant', path: '/cluster', link: 'Cluster', shows: '#boards-model:enabled' },
  { name: 'overview', role: 'operator', path: '/operator', link: 'Overview', shows: 'main .stat' },
  { name: 'nodes', role: 'operator', path: '/operator/nodes', link: 'Nodes', shows: 'main tbody tr' },
  { name: 'all-jobs', role: 'operator', path: '/operator/jobs', link: 'All jobs', shows: 'main tbody tr' },
];

/** The address of a page of a filled portal, and the session of who looks. */
export function visit(portal, { role, path }) {
  return role === 'tenant'
    ? { path: inOrg(portal.tenant.slug, path), headers: portal.tenant.headers }
    : { path, headers: portal.operator.headers };
}
