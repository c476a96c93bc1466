//go:build linux

// Package installer puts a chained CNI plugin on a node, keeps it there, and takes it away, in such a way that the node can
// start pods at every instant, also after a kill -9: the file that the container runtime loads never names a binary that does
// not exist, and is never torn, empty or missing.
//
// [Install] and [Uninstall] do their work once, and an [Agent] watches and repairs,
// reports health and metrics, and prints what the node's plugins log. An install proceeds in the order binary, kubeconfig,
// conflist; an uninstall in reverse. An action that fails holds up only those that need it: a new token does not wait for
// room on the binary's disk.
//
// Other people's files are edited through [github.com/meshcni/meshcni/conflist]: one contiguous insertion, with every other
// byte, the mode and the owner kept. A file that changes between reading and writing is read again.
//
// # Files
//
// In the CNI configuration directory, "FILE.NAME-saved", after the product, is a .conf that was replaced by a list; an uninstall gives it back.
// With [Config.OwnFile], "00-TYPE.conflist" is our own list. In the run directory are the kubeconfig (0600), log.sock (0600),
// "types" with the types under which the plugin was installed (0600), "agent" while an agent runs, and "uninstalled" while an
// uninstall has told it to rest.
//
// # Who is told
//
// The log, the metrics and [Agent.Ready] say what the state is. [Options].Notify receives what people who look at the node
// should know, for events of Kubernetes or a pager.
//
// # In a container
//
// The agent runs as user 0 with a read-only root, without /tmp and without capabilities: it writes only to the directories in
// [Config]. Where the runtime's directories belong to another user, as when the CNI plugins' archive was unpacked with its
// owners, it needs CAP_DAC_OVERRIDE, and CAP_CHOWN to edit such a file; its errors say so.
//
// [Options].Leaving distinguishes that the node is left for good from the end of a pod that another one follows.
//
// # Errors
//
// A *[BlockedError] says, with a stable code, why a node cannot capture pods now: errors.As(err, &blocked). Several are joined. File
// errors wrap the system's, as in errors.Is(err, syscall.EROFS), and name the path and the remedy; the file is then
// unchanged.
package installer
