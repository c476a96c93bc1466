//go:build linux

// Package installer puts a chained CNI plugin on a node, keeps it there, and takes it away, such that a node can always
// start pods: at no instant, kill -9 included, does the file that the container runtime loads name a binary that is not
// there, nor is that file torn, empty or gone.
//
// [Plan] is a pure function from what is wanted and what is there to ordered actions: binary, then kubeconfig, then the
// network list; the other way round to uninstall. An action that fails holds up those that need it and no others: a token
// does not wait for room on the binary's disk. [Install] carries it out once, [Uninstall] takes everything back, and an
// [Agent] watches and repairs, serves health and metrics, and prints what the plugins on the node log.
//
// Other people's files are edited through [github.com/meshcni/meshcni/conflist]: one contiguous insertion, every other
// byte, the mode and the owner kept; a file that changes between reading and writing is read again.
//
// # Names on disk
//
// In the CNI configuration directory: a .conf that a list has taken the place of waits as "NAME.meshcni-saved" and is given
// back by uninstalling; "00-meshcni.conflist" is the list of our own with [Config.OwnFile]. In the run directory:
// kubeconfig (0600), log.sock (0600), "types" with the names under which the plugin was installed (0600), "agent" while one
// runs, and "uninstalled" while an uninstall has told it to rest.
//
// # In a container
//
// The agent is user 0 of a container with a read-only root, no /tmp, and no capability: it writes to the directories that
// [Config] names and to no other place. Where the runtime's directories belong to another user, as where the CNI plugins'
// archive was unpacked with its owners, it takes CAP_DAC_OVERRIDE, and CAP_CHOWN to edit a file that does; its errors say so.
//
// [Options].Leaving tells the end of the agent's DaemonSet from that of a pod, which another follows: package nodecmd has
// one that watches the DaemonSet.
//
// # Errors
//
// A *[Blocked] says why a node cannot capture pods now, with a stable code; errors.As(err, &blocked), and several are joined
// (errors.Join). A network file that cannot be read is neither taken for the one that counts nor passed over. File errors wrap the
// system's (errors.Is(err, syscall.EROFS)) and name the path and the remedy; the file on disk is then unchanged.
package installer
