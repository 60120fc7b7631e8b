/* The state of the project, as the server reports it; every view is drawn from it. */

import { api } from "./api.js";

const listeners = new Set();
let fetching = false;
let again = false;

export const store = {
  state: null,
  /** "here", "away" (no answer) or "stranger" (a server that does not know this page). */
  server: "here",

  /** Call a function now and after every change, until the returned function is called. */
  subscribe(listener) {
    listeners.add(listener);
    if (store.state) listener(store.state);
    return () => listeners.delete(listener);
  },

  /** Fetch the state; calls made while one is in progress become one. */
  async refresh() {
    if (fetching) {
      again = true;
      return;
    }
    fetching = true;
    try {
      store.state = await api.state();
      setServer("here");
      for (const listener of listeners) listener(store.state);
    } catch (error) {
      setServer(error.status === 403 ? "stranger" : "away");
    } finally {
      fetching = false;
      if (again) {
        again = false;
        store.refresh();
      }
    }
  },

  /** The class with this identifier, if it is still there. */
  classOf: (id) => store.state?.classes.find((one) => one.id === id),
};

let onServer = () => {};
export const onServerChange = (listener) => (onServer = listener);

function setServer(server) {
  if (store.server !== server) {
    store.server = server;
    onServer(server);
  }
}

/**
 * Listen for changes while the page is visible, and reconnect when the server returns. A page in the
 * background closes its connection: browsers allow six for all pages together.
 */
export function listen() {
  const source = new EventSource("/api/events");
  const onVisibility = () => {
    if (!document.hidden) return;
    source.close();
    document.removeEventListener("visibilitychange", onVisibility);
    document.addEventListener("visibilitychange", listen, { once: true });
  };
  document.addEventListener("visibilitychange", onVisibility);
  source.addEventListener("news", () => store.refresh());
  source.addEventListener("error", () => {
    store.refresh(); // finds out whether the server is away, or does not know us
    if (source.readyState === EventSource.CLOSED) {
      source.close();
      document.removeEventListener("visibilitychange", onVisibility);
      setTimeout(listen, 2000);
    }
  });
}
