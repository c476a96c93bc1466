package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// arches are the architectures that all is released for, by Go's names; a node's programs for Linux only.
var arches = []string{"amd64", "arm64"}

// plugins are what the kubectl plugin is released for.
var plugins = []platform{
	{"darwin", "amd64"}, {"darwin", "arm64"}, {"linux", "amd64"}, {"linux", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"},
}

// nodePrograms are those of a node, as they are called in cmd/, by where the image has them. The plugin is not for the container
// to run, but to be copied to the node.
var nodePrograms = map[string]string{
	"meshcni":          "opt/meshcni/bin/meshcni",
	"meshcni-node":     "usr/local/bin/meshcni-node",
	"meshcni-redirect": "usr/local/bin/meshcni-redirect",
	"meshcni-repair":   "usr/local/bin/meshcni-repair",
	"meshcni-taint":    "usr/local/bin/meshcni-taint",
}

// The programs for people's own machines: the kubectl plugin, and its command migrate.
const (
	kubectlPlugin  = "kubectl-meshcni"
	migrateProgram = "kubectl-meshcni-migrate"
)

// platform is an operating system and an architecture, by Go's names.
type platform struct{ os, arch string }

// String returns for example "linux/amd64".
func (p platform) String() string { return p.os + "/" + p.arch }

// program is one that was built.
type program struct {
	name string
	path string
	// info is what the linker wrote into it of its modules.
	info *buildinfo.BuildInfo
}

// file is what an archive calls it.
func (p program) file() string { return filepath.Base(p.path) }

// build builds programs into the directory dir. Paths of this machine, the user's settings of the go command and what git would
// tell are kept out.
func (s source) build(ctx context.Context, at platform, dir string, names ...string) (built []program, err error) {
	variable := "-X " + ourModule + "/internal/program/version."
	flags := "-s -w -buildid= " + variable + "version=" + s.version + " " + variable + "date=" + s.time.Format(time.RFC3339)
	if s.commit != "" {
		flags += " " + variable + "commit=" + s.commit
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", dir + string(filepath.Separator)}
	if out, err := s.goCommand(ctx, at, append(args, packages(names)...)...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build for %s: %w\n%s", at, err, out)
	}
	for _, name := range names {
		p := program{name: name, path: filepath.Join(dir, name)}
		if at.os == "windows" {
			p.path += ".exe"
		}
		if p.info, err = buildinfo.ReadFile(p.path); err != nil {
			return nil, fmt.Errorf("read back %s for %s: %w", name, at, err)
		}
		built = append(built, p)
	}
	return built, nil
}

func packages(programs []string) (paths []string) {
	for _, name := range programs {
		paths = append(paths, "./"+sourceOf(name))
	}
	return paths
}

// sourceOf is a program's directory in the tree.
func sourceOf(program string) string {
	if program == migrateProgram {
		return "migrate/" + program
	}
	return "cmd/" + program
}

// goCommand is the go command in the tree's root, for the platform, with the tree's toolchain. It works in the tree's workspace,
// since a tagged commit requires modules that are published only with it.
func (s source) goCommand(ctx context.Context, at platform, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = s.root
	// Set, not unset: for what is not set the go command reads its own file of settings.
	cmd.Env = append(os.Environ(),
		"GOOS="+at.os, "GOARCH="+at.arch, "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0", "GOTOOLCHAIN="+s.toolchain,
		"GOFLAGS=-mod=readonly", "GOWORK="+filepath.Join(s.root, "go.work"), "GOFIPS140=off", "GOEXPERIMENT=", "PWD="+s.root)
	return cmd
}

// moduleOf is the module as a release has it: those of this repository are one, since they are released together.
func moduleOf(path string) string {
	if path == ourModule || strings.HasPrefix(path, ourModule+"/") {
		return ourModule
	}
	return path
}
