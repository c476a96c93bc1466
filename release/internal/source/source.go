// Package source says which sources a release is made of: where they are, their version, their commit and its time.
// All that is built takes its names and times from here, and none from the clock or the machine.
package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// Module is the path of the module that is released.
const Module = "github.com/meshcni/meshcni"

// Tree is what is released.
type Tree struct {
	// Root is the absolute path of the module's directory.
	Root string
	// Go is the toolchain that builds it, such as "go1.26.8": the one that release/go.mod names, whichever go command is
	// installed, because another compiler makes other bytes.
	Go string

	Stamp
}

// Stamp is what tells two trees apart in what is built of them. The same sources with the same stamp build to the same
// bytes.
type Stamp struct {
	// Version is "v1.2.3" or "v1.2.3-suffix", without "+", which no image's tag may have.
	Version string `json:"version"`
	// Commit is the full hash; empty where the sources are no checkout and nobody said.
	Commit string `json:"commit,omitempty"`
	// Modified reports whether the checkout has changes that are not in the commit.
	Modified bool `json:"modified,omitempty"`
	// Epoch is the time of all that is built, in seconds since 1970: SOURCE_DATE_EPOCH, else the commit's, else 0.
	Epoch int64 `json:"sourceDateEpoch"`
	// Registry is where the image and the chart will be, a host with a path if need be: the chart and the manifests install
	// from there. Empty: whoever installs says it.
	Registry string `json:"registry,omitempty"`
}

// Time is Epoch, in UTC.
func (s Stamp) Time() time.Time { return time.Unix(s.Epoch, 0).UTC() }

// Number is the version without its "v": as Helm wants a chart's, and as archives are named.
func (s Stamp) Number() string { return strings.TrimPrefix(s.Version, "v") }

// Revision is the commit, with "-dirty" if the tree has changes.
func (s Stamp) Revision() string {
	if s.Modified && s.Commit != "" {
		return s.Commit + dirty
	}
	return s.Commit
}

const dirty = "-dirty"

// Options are what git is not asked for. Empty fields are.
type Options struct {
	Version  string
	Commit   string
	Registry string
	// Epoch is SOURCE_DATE_EPOCH.
	Epoch string
}

// Find returns the root of the module that dir is in, or whose nested module it is in.
func Find(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find the sources: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		text, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil && modfile.ModulePath(text) == Module {
			return at, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("find the sources: %w", err)
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("find the sources: neither %s nor a directory above it is module %s", dir, Module)
		}
	}
}

// commits are hashes, abbreviated or not.
var commits = regexp.MustCompile(`^[0-9a-f]{7,64}$`)

// Open reads the tree at root. Its version is the tag of its commit, or what git describe makes of the last one before
// it; "-dirty" follows when there are changes. Without a tag it is v0.0.0 and the number of commits, without git it must
// be in the options.
func Open(ctx context.Context, root string, o Options) (Tree, error) {
	t := Tree{Root: root, Stamp: Stamp{Version: o.Version, Commit: o.Commit, Registry: o.Registry}}
	var err error
	if t.Go, err = toolchain(filepath.Join(root, "release", "go.mod")); err != nil {
		return Tree{}, err
	}
	if IsCheckout(root) {
		if err := t.ask(ctx); err != nil {
			return Tree{}, err
		}
	}
	if o.Epoch != "" {
		if t.Epoch, err = strconv.ParseInt(o.Epoch, 10, 64); err != nil || t.Epoch < 0 {
			return Tree{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q, not a number of seconds since 1970", o.Epoch)
		}
	}
	switch {
	case t.Version == "":
		return Tree{}, fmt.Errorf("%s is no git checkout, which would tell the version: give --version", root)
	case semver.Canonical(t.Version) != t.Version:
		return Tree{}, fmt.Errorf("version %q is not of the form v1.2.3 or v1.2.3-suffix", t.Version)
	case t.Commit != "" && !commits.MatchString(t.Commit):
		return Tree{}, fmt.Errorf("commit %q is not the hash of a commit", t.Commit)
	}
	return t, nil
}

// ask takes from git what the options leave open.
func (t *Tree) ask(ctx context.Context) error {
	changes, err := t.git(ctx, []string{"status", "--porcelain"})
	if err != nil {
		return err
	}
	t.Modified = changes != ""
	seconds, err := t.git(ctx, []string{"log", "-1", "--format=%ct"})
	if err != nil {
		return err
	}
	if t.Epoch, err = strconv.ParseInt(seconds, 10, 64); err != nil {
		return fmt.Errorf("time of the commit: %w", err)
	}
	if t.Commit == "" {
		if t.Commit, err = Head(ctx, t.Root); err != nil {
			return err
		}
	}
	if t.Version == "" {
		if t.Version, err = t.describe(ctx); err != nil {
			return err
		}
		if t.Modified {
			t.Version += dirty
		}
	}
	return nil
}

func (t *Tree) describe(ctx context.Context) (string, error) {
	tag, err := t.git(ctx, []string{"describe", "--tags", "--abbrev=12", "--match", "v[0-9]*"})
	if err == nil {
		return tag, nil
	}
	// No tag, or none among the commits that a shallow clone has.
	n, err := t.git(ctx, []string{"rev-list", "--count", "HEAD"})
	if err != nil {
		return "", err
	}
	hash, err := t.git(ctx, []string{"rev-parse", "--short=12", "HEAD"})
	return "v0.0.0-" + n + "-g" + hash, err
}

// IsCheckout reports whether root is a git checkout.
func IsCheckout(root string) bool {
	_, err := os.Lstat(filepath.Join(root, ".git"))
	return err == nil
}

// Head returns the hash of the commit that is checked out at root.
func Head(ctx context.Context, root string) (string, error) {
	t := Tree{Root: root}
	return t.git(ctx, []string{"rev-parse", "HEAD"})
}

// Export writes a commit of the checkout at root to the directory to, which it makes.
func Export(ctx context.Context, root, commit, to string) error {
	if !commits.MatchString(commit) {
		return fmt.Errorf("export commit %q: not the hash of a commit", commit)
	}
	t := Tree{Root: root}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("export commit %s: %w", commit, err)
	}
	// A clone would need the history, which a shallow checkout lacks. The index is one of its own.
	index := "GIT_INDEX_FILE=" + filepath.Join(to, ".index")
	for _, args := range [][]string{{"read-tree", commit}, {"checkout-index", "--all", "--prefix=" + to + "/"}} {
		if _, err := t.git(ctx, args, index); err != nil {
			return fmt.Errorf("export commit %s: %w", commit, err)
		}
	}
	return os.Remove(filepath.Join(to, ".index"))
}

// git runs git in the tree and returns its trimmed output.
func (t *Tree) git(ctx context.Context, args []string, env ...string) (string, error) {
	// The files' owner does not matter: their content is about to be run anyway.
	cmd := exec.CommandContext(ctx, "git", append([]string{"--no-optional-locks", "-c", "safe.directory=" + t.Root, "-C", t.Root}, args...)...)
	cmd.Env = append(append(os.Environ(), "LC_ALL=C"), env...)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

func toolchain(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("which Go builds the release: %w", err)
	}
	mod, err := modfile.Parse(file, text, nil)
	if err != nil {
		return "", fmt.Errorf("which Go builds the release: %w", err)
	}
	// The go command removes the one when the other says the same.
	switch {
	case mod.Toolchain != nil:
		return mod.Toolchain.Name, nil
	case mod.Go != nil:
		return "go" + mod.Go.Version, nil
	}
	return "", fmt.Errorf("which Go builds the release: %s does not say", file)
}
