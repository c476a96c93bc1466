// Package attachment stores what was done to each pod on a node: one small file per attachment, which ADD writes, CHECK
// reads and DEL removes. With it, CHECK needs neither the API server nor today's configuration.
//
//	store := attachment.Open("/var/run/meshcni")
//	err := store.Write(attachment.Record{ID: id, NetNS: ns, …})
//	record, err := store.Read(id)
//
// The files are run_dir/attachments/NETWORK@CONTAINER@INTERFACE.json, with mode 0600 in a directory of mode 0700. They are
// replaced atomically, so a reader finds the old record, the new one or none. They are not synced, because network
// namespaces do not survive a reboot either; run_dir should be a directory that a reboot empties.
//
// A missing or unreadable record says nothing: neither that the pod has no rules nor that it was passed over.
package attachment
