//go:build linux

package installer

import "slices"

// BinDir is one of the runtime's directories of plugins.
type BinDir struct {
	// Path is its path in this process.
	Path string
	// Err is the cause of a read that failed. Then nothing else is known of it.
	Err error
	// Usable: a program that can be run has the plugin's name. Current: it is the one that the agent installs.
	Usable, Current bool

	names []string
}

// Has reports whether the directory has a file of that name.
func (b BinDir) Has(name string) bool { return slices.Contains(b.names, name) }

// saw remembers the directories for [Agent.BinDirs].
func (a *Agent) saw(dirs []binDir) {
	all := make([]BinDir, 0, len(dirs))
	for _, d := range dirs {
		all = append(all, BinDir{Path: d.path, Err: d.err, Usable: d.usable, Current: d.current, names: d.names})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.binDirs = all
}
