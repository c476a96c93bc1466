// Package netnsstore knows which network namespace is a pod's, for sure, and keeps it open for as long as anybody needs it.
//
//	store := netnsstore.New(netnsstore.Options{RunDir: "/var/run/meshcni", Inventory: inventory})
//	ref, err := store.Put(netnsstore.Attachment{UID: uid, Addrs: addrs}, file) // a pod that is being set up
//	ref, err := store.Find(ctx, netnsstore.Pod{UID: uid, Addrs: addrs})                     // a pod that runs
//	defer ref.Close()
//
// # What proves that a namespace is a pod's
//
// Always: the kernel says that the file is a network namespace (nsfs, CLONE_NEWNET), it is not that of process 1 nor our own,
// no other pod has it, and it has all known addresses of the pod (RTM_GETADDR in the namespace). A pod without a known address
// has none that is proven. And, by where it comes from:
//
//	attachment   the runtime named the pod's UID and gave the namespace, as an open file, to the plugin's ADD
//	journal      it was proven before, under that UID; since then a mount of ours has kept it alive, so the device and inode
//	             numbers in the entry cannot have come to mean another one
//	runtime      the runtime's hook named the pod's UID and the path
//	record       the plugin's record has the pod's UID, and the file at its path has the device and inode numbers that ADD saw
//	cache        libcni's cache has the pod's UID among the arguments of the attachment, and the path
//	process      a process in the control group of the pod's UID is in it (internal/kernel/podnetns says how)
//
// All but the last are the runtime's word, and outrank processes: a pod may put its own into any namespace. Of several namespaces that it
// has named and that have the addresses, such as that of a sandbox whose DEL failed, the one in which the pod has processes counts, else
// the first in this order. Without its word the process counts; what a process showed before gives way to another one. Names of pods prove
// nothing, and neither does a path without more: a path that leads through a process is left to the search by process.
//
// # The journal
//
// run_dir/netns has for each pod a bind mount of the namespace, UID, and what is known of it, UID.json. It is written and
// removed in steps of which any may be the last: an entry counts only if UID.json is whole, from this boot, and has the
// numbers of the namespace mounted at UID. The rest is removed at the next start. It needs CAP_SYS_ADMIN; in a container, also
// CAP_SYS_CHROOT and CAP_SYS_PTRACE, for mounts that outlive the container ([Options.HostRoot]). Without the journal, the other
// sources serve; [Store.Journal] says why there is none.
//
// A mount keeps a namespace alive, with its interfaces and addresses, so the entries of pods that are gone must go:
// [Store.Forget] and [Store.Retain] see to that, and [RemoveJournal] before the agent leaves for good.
package netnsstore
