// Package conflist edits CNI network configuration files as a guest: it adds one plugin to a list that belongs to
// somebody else, and takes it out again, without touching any other byte.
//
// [Insert] is one contiguous insertion behind the last plugin, indented like its neighbours. Key order, numbers that no
// float64 can hold, escapes, tabs, CRLF and a missing final newline survive, because the file is never decoded and
// encoded again; [Remove] is the inverse and gives back the bytes that Insert was given. [Primary] answers which file of
// a directory a container runtime would load, and why it passes over the others. A single plugin's configuration
// (a .conf file) cannot be chained to: [ToList] makes the list that can.
//
// The package does no I/O beyond the fs.FS it is given, reads no environment and starts no process. What a file means is
// what libcni (github.com/containernetworking/cni v1.3) makes of it; the tests hold the two together.
//
// # Errors
//
// Test them with errors.Is(err, conflist.ErrInvalid) and so on. Their texts name the line and column, or the key.
package conflist

import "errors"

var (
	// ErrInvalid: the bytes are no network configuration that libcni would load.
	ErrInvalid = errors.New("no valid CNI configuration")
	// ErrSingle: the bytes are one plugin's configuration, which holds no list; see [ToList].
	ErrSingle = errors.New("a single plugin's configuration cannot be chained to")
	// ErrLastPlugin: with that plugin removed, none would be left and no runtime would load the file.
	ErrLastPlugin = errors.New("no plugin would be left")
	// ErrNoInlinePlugins: the list keeps its plugins in a directory of its own (CNI 1.1), so it has no array to insert into.
	ErrNoInlinePlugins = errors.New("the list has no inline plugins")
	// ErrUnreadable: a file could not be read, so it is unknown whether a runtime would load it; errors.As to
	// *[UnreadableError] tells which one.
	ErrUnreadable = errors.New("cannot be read, so a runtime may load it or not")
	// ErrNoNetwork: no file of the directory would be loaded; errors.As to *[NoNetworkError] tells why for each.
	ErrNoNetwork = errors.New("no valid network configuration")
)
