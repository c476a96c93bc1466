// Package attachment is the node's own memory of what was done to each pod: one small file for each attachment, which ADD
// leaves, CHECK reads and DEL removes. With it CHECK needs neither the API server nor today's configuration: what was set up
// either is in force or is not.
//
//	store := attachment.In("/var/run/meshcni")
//	err := store.Write(attachment.Record{ID: id, NetNS: ns, …})
//	record, err := store.Read(id)
//
// The files are run_dir/attachments/NETWORK@CONTAINER@INTERFACE.json, mode 0600 in a directory of mode 0700, and are
// written whole: a reader finds the old record, the new one or none. They are not synced, because they are about network
// namespaces, which do not outlive the kernel either; run_dir is to be a directory that a reboot empties.
//
// A record is a hint for those who have something to compare it with. One that is missing, or cannot be read, says nothing:
// neither that the pod has no rules nor that it was passed over.
package attachment
