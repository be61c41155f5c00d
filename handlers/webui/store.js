// Stores conversations in the browser's database. Without a database (in some private windows), they
// are lost when the page is closed.

const NAME = "specllama";
const memory = new Map();
let opened = null;

function open() {
  opened ??= new Promise((resolve) => {
    let wanted;
    try {
      wanted = indexedDB.open(NAME, 1);
    } catch {
      resolve(null);
      return;
    }
    wanted.onupgradeneeded = () => wanted.result.createObjectStore("conversations", { keyPath: "id" });
    wanted.onsuccess = () => resolve(wanted.result);
    wanted.onerror = () => resolve(null);
    wanted.onblocked = () => resolve(null);
  });
  return opened;
}

async function run(mode, work) {
  const database = await open();
  if (!database) return undefined;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction("conversations", mode);
    const asked = work(transaction.objectStore("conversations"));
    transaction.commit?.(); // otherwise it is undone if the user closes the page now
    transaction.oncomplete = () => resolve(asked.result);
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
}

export const isKept = async () => (await open()) !== null;

export async function all() {
  return (await run("readonly", (store) => store.getAll())) ?? [...memory.values()];
}

export async function get(id) {
  return (await run("readonly", (store) => store.get(id))) ?? memory.get(id);
}

export async function put(conversation) {
  memory.set(conversation.id, conversation);
  await run("readwrite", (store) => store.put(structuredClone(conversation)));
}

export async function remove(id) {
  memory.delete(id);
  await run("readwrite", (store) => store.delete(id));
}
