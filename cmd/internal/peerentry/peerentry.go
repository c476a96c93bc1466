// Package peerentry takes the entry of another mesh's plugin out of a node's network configuration, keeps it beside, and puts it
// back: what "kubectl meshcni migrate switch" and "back" do on a node.
//
// What is taken out is kept in a file of the same directory, which no container runtime looks at: the whole list as it was. It is
// written before the list is changed, so that a run that is killed in between loses nothing: the next one takes out again, or finds
// the entry in its place. The list changes by one atomic step, and only from what had been read; see package diskfile.
package peerentry

import (
	"encoding/json"
	"errors"
	"regexp"
	"time"
)

// The errors, besides those of package conflist and of the file system.
var (
	// ErrNoOwn: the list has no entry of ours, so without the other's no plugin would capture pods.
	ErrNoOwn = errors.New("our entry is not in the list that the runtime loads, so pods would bypass the mesh")
	// ErrOwnFile: the runtime loads a file that our agent derives from another, and would write anew.
	ErrOwnFile = errors.New("our agent keeps a list of its own (cni.ownFile), which it makes from the other's anew")
	// ErrNoBinary: the plugin's program is gone, so no pod would start with its entry.
	ErrNoBinary = errors.New("its program is not on the node, so no pod would start with its entry: install the other plugin again")
	// ErrNothingKept: nothing of that type has been taken out, or it has been put back.
	ErrNothingKept = errors.New("nothing that was taken out is kept on the node")
	// ErrFoughtOver: another program has changed the file whenever it was to be changed here, or has undone the change at once.
	ErrFoughtOver = errors.New("another program writes the file at the same time")
	// ErrUnread: what is kept cannot be read.
	ErrUnread = errors.New("what was taken out cannot be read")
)

// IsType reports whether a plugin may be of such a type here: it becomes part of a file's name.
func IsType(s string) bool { return len(s) <= 63 && typeForm.MatchString(s) }

var typeForm = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._-]*$`)

// State holds the entries of a node.
type State struct {
	// File is the name of the list that the runtime loads, Network its network's, and Plugins the types in it.
	File    string   `json:"file"`
	Network string   `json:"network"`
	Plugins []string `json:"plugins"`
	// Chained: the other's entry is in that list. Own: ours is.
	Chained bool `json:"chained"`
	Own     bool `json:"own"`
	// Binary: the other's program is in a directory of plugins.
	Binary bool `json:"binary"`
	// Kept was taken out and not put back. KeptError is the reason that it cannot be read.
	Kept      *Kept  `json:"kept,omitempty"`
	KeptError string `json:"kept_error,omitempty"`
	// Changed: the command has changed the list, or would. Diff is the change.
	Changed bool   `json:"changed,omitempty"`
	Diff    string `json:"diff,omitempty"`
}

// Kept was taken out.
type Kept struct {
	Type string `json:"type"`
	// File is the name of the list, and Network its network's.
	File    string    `json:"file"`
	Network string    `json:"network"`
	Time    time.Time `json:"time"`
	// Entries are the plugin's, and Behind the types before each.
	Entries []json.RawMessage `json:"entries"`
	Behind  [][]string        `json:"behind"`
	// Rest is the SHA-256 of the list without them, in hexadecimal.
	Rest string `json:"rest"`
	// List is the whole list as it was.
	List []byte `json:"list,omitempty"`
}
