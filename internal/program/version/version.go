// Package version identifies the build, for --version of the module's programs.
//
// The linker sets the version of a release:
//
//	go build -ldflags "-X github.com/meshcni/meshcni/internal/program/version.version=v1.2.3" ./cmd/...
//
// Otherwise the version is the one that the go command recorded: the tag of `go install …@v1.2.3`, or the
// pseudo-version of the checkout. It is read on demand, because the plugin starts for each pod.
package version

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"strings"
)

// Module is this module's path.
const Module = "github.com/meshcni/meshcni"

// Devel is the version of a build without a recorded one.
const Devel = "devel"

// Variables for the linker. All may be empty. commit and date override what the go
// command records, for example in a build outside a checkout.
var (
	version string // the result of String
	commit  string // the full hash, with "-dirty" where the checkout had changes
	date    string // of the commit, RFC 3339
)

// Info describes a build.
type Info struct {
	// Version is a tag, a pseudo-version, with "+dirty" if the checkout had changes, or [Devel]. It is never empty.
	Version string
	// Commit is the hash of the commit; empty if unknown.
	Commit string
	// Date is the date of the commit in RFC 3339; empty if unknown.
	Date string
	// Modified reports whether the checkout differed from Commit.
	Modified bool
	// Go is the version of Go, Platform is GOOS/GOARCH.
	Go, Platform string
}

// String returns the version alone.
func String() string {
	if version != "" {
		return version
	}
	info, _ := debug.ReadBuildInfo()
	return recorded(info)
}

// Get returns the description of this build.
func Get() Info {
	build, _ := debug.ReadBuildInfo()
	return from(build, version, commit, date)
}

// Agent returns what a program calls itself in requests. Its version is the first word of that given, or this module's.
func Agent(program, given string) string {
	given, _, _ = strings.Cut(given, " ")
	return program + "/" + cmp.Or(given, String())
}

// Long returns the version and its origin in one line:
//
//	v1.2.3 (commit 0123456789ab, 2026-11-21T09:00:00Z, go1.26.8, linux/amd64)
//
// It omits what is unknown. --version prints it after the program's name.
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

// shortHash is the length of a commit's hash in a pseudo-version.
const shortHash = 12

func from(build *debug.BuildInfo, version, commit, date string) Info {
	i := Info{Version: version, Date: date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	i.Commit, i.Modified = strings.CutSuffix(commit, "-dirty")
	if i.Version == "" {
		i.Version = recorded(build)
	}
	// The go command records the checkout of the main module only.
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

// recorded returns the version of this module, which is a dependency in programs of other modules.
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
