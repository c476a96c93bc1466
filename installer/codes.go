//go:build linux

package installer

import (
	"errors"

	"github.com/meshcni/meshcni/status"
)

// BlockedError is a reason why pods cannot be captured on this node at present.
type BlockedError struct {
	// Code is the kind of the reason, of [status.KindReadiness].
	Code status.Code
	// Err is the reason with its remedy.
	Err error
}

// Error returns the code and the reason.
func (b *BlockedError) Error() string { return string(b.Code) + ": " + b.Err.Error() }

// Unwrap returns Err.
func (b *BlockedError) Unwrap() error { return b.Err }

// join returns nil, the one reason itself, or all of them joined.
func join(blocked []*BlockedError) error {
	if len(blocked) == 1 {
		return blocked[0]
	}
	var errs []error
	for _, b := range blocked {
		errs = append(errs, b)
	}
	return errors.Join(errs...)
}

// The codes of a [BlockedError]. They are stable: alerts and the metric meshcni_blocked use them. docs/troubleshooting.md says what to do
// about each.
const (
	codeStarting           status.Code = "starting"            // the node has not been examined yet
	codeNoNetwork          status.Code = "no-network"          // there is no valid conflist to chain into
	codeConfUnreadable     status.Code = "conf-unreadable"     // a file that the runtime may load cannot be read
	codeNamedFileMissing   status.Code = "named-file-missing"  // Config.CNIConfName does not exist or is invalid
	codeNoInlinePlugins    status.Code = "no-inline-plugins"   // the conflist keeps its plugins in a directory
	codeUnsupportedVersion status.Code = "unsupported-version" // the plugin does not support the conflist's cniVersion
	codeConfDir            status.Code = "conf-dir"            // the configuration directory cannot be read
	codeBinDir             status.Code = "bin-dir"             // a binary directory cannot be read
	codeNoBinary           status.Code = "no-binary"           // there is no binary to install
	codeNoCredentials      status.Code = "no-credentials"      // the service account cannot be read
	codeTokenExpired       status.Code = "token-expired"       // the plugin's token has expired
	codeNoAPIServer        status.Code = "no-api-server"       // the API server's address is unknown
	codeBadEntry           status.Code = "bad-entry"           // the plugin's entry is invalid or does not fit the conflist
	codeOwnNameTaken       status.Code = "own-name-taken"      // the name of our own file belongs to somebody else
	codeSortsLater         status.Code = "sorts-later"         // our own file would not be the first
	codeNotWhole           status.Code = "not-whole"           // what the loaded list names is not there
	codeSelfDelegating     status.Code = "self-delegating"     // the list would delegate to itself
	codeConflict           status.Code = "fight"               // a conflicting writer keeps removing the entry
	codeWriteFailed        status.Code = "write-failed"        // a file could not be changed
	codeUninstalled        status.Code = "uninstalled"         // an uninstall told the agent to rest
	codeStillNamed         status.Code = "still-named"         // a configuration still needs what an uninstall would remove
	codeSuperseded         status.Code = "superseded"          // a newer agent runs on this node
	codeWaiting            status.Code = "waiting"             // an older agent runs on this node, and this one could not do its work yet
)

// cause is the reason for an [action]. Causes are stable: logs and the metric meshcni_drift_repairs_total use them.
type cause string

// The causes.
const (
	causeFirstInstall       cause = "first-install"       // the file has not had the entry since this process began
	causeEntryRemoved       cause = "entry-removed"       // the file was rewritten without the entry
	causeEntryChanged       cause = "entry-changed"       // the entry differs from the one wanted
	causeEntryElsewhere     cause = "entry-elsewhere"     // the entry is in a file that is not the target
	causeConfAppeared       cause = "conf-appeared"       // a .conf appeared that sorts before the list
	causeOwnFileMissing     cause = "own-file-missing"    // our own file was removed
	causeOwnFileTaken       cause = "own-file-taken"      // the entry was fought over, and OwnFile is SwitchAuto
	causeOwnFileOutdated    cause = "own-file-outdated"   // the file that ours is derived from has changed
	causeBinaryMissing      cause = "binary-missing"      // there is no usable binary
	causeBinaryChanged      cause = "binary-changed"      // the binary is not the one to install
	causeKubeconfigMissing  cause = "kubeconfig-missing"  // there is no kubeconfig
	causeKubeconfigMode     cause = "kubeconfig-mode"     // the kubeconfig's mode is not 0600
	causeCredentialsChanged cause = "credentials-changed" // the token, the CA or the API server's address has changed
	causeTypeNew            cause = "type-new"            // the plugin's type is to be recorded for an uninstall
	causeKilledRun          cause = "killed-run"          // a killed process left a temporary file
	causeOwnerGone          cause = "owner-gone"          // the owner of a .conf has removed its plugin
	causeOwnerBack          cause = "owner-back"          // and has put it back
	causeGivenBack          cause = "given-back"          // a .conf returns to its name
	causeHookPlugin         cause = "hook-plugin"         // the plugin that the runtime starts by itself is to be there, and as it is to be
	causeUninstall          cause = "uninstall"           // the plugin is removed
)
