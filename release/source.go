package main

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

// ourModule is the path of the module that is released.
const ourModule = "github.com/meshcni/meshcni"

// source is what is released. The same files with the same other fields build to the same bytes: nothing comes from the clock
// or the machine.
type source struct {
	// root is the absolute path of the module's directory.
	root string
	// toolchain builds it, whichever go command is installed: the one that release/go.mod names, such as "go1.26.8".
	toolchain string
	// version is "v1.2.3" or "v1.2.3-suffix", without "+", which no image's tag may have.
	version string
	// commit is the full hash, with "-dirty" if the checkout has changes; empty where the sources are no checkout and nobody said.
	commit string
	// time is of all that is built: SOURCE_DATE_EPOCH, else the commit's, else 1970.
	time time.Time
	// registry has the image and the chart, a host with a path if need be. Empty: whoever installs says it.
	registry string
}

// number is the version without its "v": as Helm wants a chart's, and as archives are named.
func (s source) number() string { return strings.TrimPrefix(s.version, "v") }

// find returns the root of the module that dir is in, or whose nested module it is in.
func find(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find the sources: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		text, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil && modfile.ModulePath(text) == ourModule {
			return at, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("find the sources: %w", err)
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("find the sources: neither %s nor a directory above it is module %s", dir, ourModule)
		}
	}
}

var (
	commits = regexp.MustCompile(`^[0-9a-f]{7,64}(-dirty)?$`)
	goLine  = regexp.MustCompile(`(?m)^toolchain (go\S+)$`)
	appLine = regexp.MustCompile(`(?m)^appVersion: (\S+)$`)
)

// complete fills in what the flags leave open: the version from the chart, where it is written down, commit and time from git.
func (s *source) complete(ctx context.Context, epoch string) (err error) {
	if s.toolchain, err = s.read("release/go.mod", goLine); err != nil {
		return err
	}
	if s.version == "" {
		if s.version, err = s.read(chartDir+"/Chart.yaml", appLine); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(filepath.Join(s.root, ".git")); err == nil {
		if err := s.ask(ctx, &epoch); err != nil {
			return err
		}
	}
	seconds := int64(0)
	if epoch != "" {
		if seconds, err = strconv.ParseInt(epoch, 10, 64); err != nil || seconds < 0 {
			return fmt.Errorf("SOURCE_DATE_EPOCH is %q, not a number of seconds since 1970", epoch)
		}
	}
	s.time = time.Unix(seconds, 0).UTC()
	switch {
	case semver.Canonical(s.version) != s.version:
		return fmt.Errorf("version %q is not of the form v1.2.3 or v1.2.3-suffix", s.version)
	case s.commit != "" && !commits.MatchString(s.commit):
		return fmt.Errorf("commit %q is not the hash of a commit", s.commit)
	}
	return nil
}

// read returns what a line of a file says.
func (s *source) read(file string, line *regexp.Regexp) (string, error) {
	text, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(file)))
	if err != nil {
		return "", err
	}
	found := line.FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("%s has no line like %s", file, line)
	}
	return string(found[1]), nil
}

// ask takes from git the commit and its time, unless they are given.
func (s *source) ask(ctx context.Context, epoch *string) (err error) {
	if s.commit == "" {
		if s.commit, err = s.git(ctx, "rev-parse", "HEAD"); err != nil {
			return err
		}
		changes, err := s.git(ctx, "status", "--porcelain")
		if err != nil {
			return err
		}
		if changes != "" {
			s.commit += "-dirty"
		}
	}
	if *epoch == "" {
		*epoch, err = s.git(ctx, "log", "-1", "--format=%ct")
	}
	return err
}

// git runs git in the tree and returns its trimmed output.
func (s *source) git(ctx context.Context, args ...string) (string, error) {
	// The files' owner does not matter: their content is about to be run anyway.
	cmd := exec.CommandContext(ctx, "git", append([]string{"--no-optional-locks", "-c", "safe.directory=" + s.root, "-C", s.root}, args...)...)
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
