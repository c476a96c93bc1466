// Package conflist edits CNI network configuration files: it adds a plugin to a list that another program owns, and
// removes it again, without changing any other byte.
//
// [Insert] makes one contiguous insertion behind the last plugin, indented like its neighbours. Key order, the spelling of
// numbers (9007199254740993 stays), escapes, tabs, CRLF and a missing final newline survive, because the file is never
// decoded and encoded again. [Remove] is the inverse. [Primary] finds the file of a directory that a container runtime
// loads, and says why it passes over the others. A single plugin's configuration (a .conf file) cannot be chained to:
// [ToList] makes a list of it.
//
// The package does no I/O except on the fs.FS that it is given. A file means what libcni (github.com/containernetworking/cni
// v1.3) makes of it; the tests compare the two. For example, a number beyond the range of float64, such as 1e400, is
// [ErrInvalid], because no runtime loads such a list.
//
// # Errors
//
// Check with errors.Is(err, conflist.ErrInvalid) and so on, and those of [Primary] with errors.As. Texts name the line and column, or the key.
package conflist

import "errors"

var (
	// ErrInvalid: libcni would not load these bytes as a network configuration.
	ErrInvalid = errors.New("no valid CNI configuration")
	// ErrSingle: the bytes are a single plugin's configuration; see [ToList].
	ErrSingle = errors.New("a single plugin's configuration cannot be chained to")
	// ErrLastPlugin: without that plugin the list would be empty, and no runtime would load it.
	ErrLastPlugin = errors.New("no plugin would be left")
	// ErrNoInlinePlugins: the list's plugins are in a directory (CNI 1.1), so there is no array to insert into.
	ErrNoInlinePlugins = errors.New("the list has no inline plugins")
)
