// Package version says which build this is: each of the module's programs
// answers --version with it, in one format.
//
// A release's version is set by the linker:
//
//	go build -ldflags "-X github.com/meshcni/meshcni/internal/version.version=v1.2.3" ./cmd/...
//
// Without that it is what the go command recorded: the tag of `go install
// …@v1.2.3`, or the pseudo-version of the checkout that was built. Nothing is
// read before it is asked for, since the plugin is started for each pod.
package version

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// Module is this module's path.
const Module = "github.com/meshcni/meshcni"

// Devel is the version of a build of which nothing is known.
const Devel = "devel"

// The linker's variables. All may be empty. commit and date serve builds that
// know better than the go command, or are made outside of a checkout.
var (
	version string // as String gives it
	commit  string // the full hash, with "-dirty" where the checkout had changes
	date    string // of the commit, RFC 3339
)

// Info is what is known of a build.
type Info struct {
	// Version is a tag, a pseudo-version, with "+dirty" if the checkout had
	// changes, or [Devel]. It is never empty.
	Version string
	// Commit is the hash of the commit that was built; empty: not known.
	Commit string
	// Date is that commit's, in RFC 3339; empty: not known.
	Date string
	// Modified reports whether the checkout differed from Commit, as far as
	// the go command noticed.
	Modified bool
	// Go is the version of Go that built it, Platform its GOOS/GOARCH.
	Go, Platform string
}

// String is the version alone.
func String() string {
	if version != "" {
		return version
	}
	info, _ := debug.ReadBuildInfo()
	return recorded(info)
}

// Get returns all that is known.
func Get() Info {
	build, _ := debug.ReadBuildInfo()
	return from(build, version, commit, date)
}

// Long is the version and where it comes from, in one line:
//
//	v1.2.3 (commit 0123456789ab, 2026-11-21T09:00:00Z, go1.26.8, linux/amd64)
//
// What is not known is left out. What --version prints is the program's name
// and this.
func Long() string { return Get().String() }

// String is [Long] for the build i.
func (i Info) String() string {
	var parts []string
	if i.Commit != "" {
		short := i.Commit
		if len(short) > shortHash {
			short = short[:shortHash]
		}
		if i.Modified {
			short += ", modified"
		}
		parts = append(parts, "commit "+short)
	}
	if i.Date != "" {
		parts = append(parts, i.Date)
	}
	return i.Version + " (" + strings.Join(append(parts, i.Go, i.Platform), ", ") + ")"
}

// shortHash is how much of a commit's hash pseudo-versions show, too.
const shortHash = 12

func from(build *debug.BuildInfo, version, commit, date string) Info {
	i := Info{Version: version, Date: date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	i.Commit, i.Modified = strings.CutSuffix(commit, "-dirty")
	if i.Version == "" {
		i.Version = recorded(build)
	}
	// The go command's record of the checkout is of the main module's alone.
	if build == nil || build.Main.Path != Module {
		return i
	}
	for _, s := range build.Settings {
		switch {
		case s.Key == "vcs.revision" && commit == "":
			i.Commit = s.Value
		case s.Key == "vcs.time" && date == "":
			i.Date = s.Value
		case s.Key == "vcs.modified" && commit == "":
			i.Modified = s.Value == "true"
		}
	}
	return i
}

// recorded is the version of this module in the build, which in others'
// programs is one of the dependencies.
func recorded(build *debug.BuildInfo) string {
	if build == nil {
		return Devel
	}
	found := ""
	if build.Main.Path == Module {
		found = build.Main.Version
	}
	for _, dep := range build.Deps {
		if dep.Path == Module {
			found = dep.Version
			if dep.Replace != nil {
				found = dep.Replace.Version // empty for a directory
			}
		}
	}
	if found == "" || found == "(devel)" {
		return Devel
	}
	return found
}
