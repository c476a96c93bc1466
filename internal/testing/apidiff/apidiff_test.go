package apidiff_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

const script = "../../../.ci/apidiff"

// tool is installed by the script itself; without network that may fail.
var tool = netnstest.Need{Name: "apidiff (.ci/tool apidiff)", Check: func() error {
	return exec.Command("../../../.ci/tool", "apidiff").Run()
}}

// repository is a module of four public packages and three that are not, with
// one release.
type repository struct {
	t   *testing.T
	dir string
}

var released = map[string]string{
	"go.mod":             "module example.com/m\n\ngo 1.24\n",
	"m.go":               "package m\n\nconst Name = 1\n",
	"apply/apply.go":     "package apply\n\ntype Options struct{ Path string }\n\nfunc Choose(Options) error { return nil }\n",
	"apply/nft/nft.go":   "package nft\n\nfunc List() []string { return nil }\n",
	"internal/in/in.go":  "package in\n\nfunc F() {}\n",
	"cmd/p/main.go":      "package main\n\nfunc F() {}\n\nfunc main() {}\n",
	"cmd/pcmd/pcmd.go":   "package pcmd\n\nfunc F() {}\n",
	"examples/e/e.go":    "package e\n\nfunc F() {}\n",
	"apply/a_test.go":    "package apply\n\nfunc F() {}\n",
	"nested/go.mod":      "module example.com/m/nested\n\ngo 1.24\n",
	"nested/nested.go":   "package nested\n\nfunc F() {}\n",
	"CHANGELOG.md":       "# Changelog\n\n## Unreleased\n\n## 0.1.0 - 2026-01-01\n### Breaking\n- `apply`: of the release before\n",
	"testdata/broken.go": "package",
}

func newRepository(t *testing.T, files map[string]string) repository {
	t.Helper()
	r := repository{t, t.TempDir()}
	r.git("init", "-q", "-b", "main")
	r.write(files)
	r.git("add", ".")
	r.git("commit", "-q", "-m", "release")
	return r
}

func (r repository) git(args ...string) {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
	out, err := cmd.CombinedOutput()
	require.NoError(r.t, err, "git %v: %s", args, out)
}

// write makes files; an empty text removes one.
func (r repository) write(files map[string]string) {
	r.t.Helper()
	for name, text := range files {
		path := filepath.Join(r.dir, name)
		if text == "" {
			require.NoError(r.t, os.Remove(path))
			continue
		}
		require.NoError(r.t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(r.t, os.WriteFile(path, []byte(text), 0o644))
	}
}

// run returns what the script says, on both streams, and whether it passes.
func (r repository) run() (said string, passed bool) {
	r.t.Helper()
	out, err := exec.Command(script, r.dir).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(r.t, err)
	}
	return string(out), err == nil
}

func TestScript(t *testing.T) {
	netnstest.Require(t, tool)
	text, err := os.ReadFile(script) // also an input of the cached result
	require.NoError(t, err)
	require.NotEmpty(t, text)

	changelog := func(text string) string {
		return "# Changelog\n\n" + text + "\n" + released["CHANGELOG.md"][len("# Changelog\n\n## Unreleased\n\n"):]
	}
	otherOptions := "package apply\n\ntype Options struct{ Dir string }\n\nfunc Choose(Options) error { return nil }\n"
	const passes = "apidiff: compatible with v0.1.0 but for what the changelog announces; "
	tests := map[string]struct {
		change map[string]string
		fails  bool
		want   []string
		not    []string
	}{
		"nothing": {want: []string{passes + "0 additions\n"}},
		"an addition": {
			change: map[string]string{"apply/more.go": "package apply\n\nfunc More() {}\n", "new/new.go": "package new\n"},
			want:   []string{passes + "2 additions\n"},
		},
		"a field's name": {
			change: map[string]string{"apply/apply.go": otherOptions}, fails: true,
			want: []string{"incompatible: ./apply.Options.Path: removed", "builds with v0.1.0"},
		},
		"a signature": {
			change: map[string]string{"apply/nft/nft.go": "package nft\n\nfunc List(all bool) []string { return nil }\n"}, fails: true,
			want: []string{"incompatible: ./apply/nft.List: changed from func() []string to func(bool) []string"},
		},
		"a package is gone": {
			change: map[string]string{"apply/nft/nft.go": ""}, fails: true,
			want: []string{"incompatible: package example.com/m/apply/nft: removed"},
		},
		"the root's own package": {
			change: map[string]string{"m.go": "package m\n\nconst Name = \"m\"\n"}, fails: true,
			want: []string{"incompatible: Name: changed from untyped int to untyped string"},
		},
		"a command line": {
			change: map[string]string{"cmd/pcmd/pcmd.go": "package pcmd\n"}, fails: true,
			want: []string{"incompatible: ./cmd/pcmd.F: removed"},
		},
		"what nobody is meant to import": {
			change: map[string]string{"internal/in/in.go": "package in\n", "examples/e/e.go": "package e\n", "cmd/p/main.go": "package main\n\nfunc main() {}\n", "nested/nested.go": "package nested\n"},
			want:   []string{passes + "0 additions\n"},
		},
		"announced as breaking": {
			change: map[string]string{"apply/apply.go": otherOptions, "CHANGELOG.md": changelog("## Unreleased\n### Breaking\n- `apply`: Options.Path is Options.Dir\n")},
			want:   []string{"incompatible, and announced: ./apply.Options.Path: removed", passes + "1 additions\n"},
		},
		"announced as a change, with the name": {
			change: map[string]string{"apply/apply.go": otherOptions, "CHANGELOG.md": changelog("## Unreleased\n### Added\n- more\n### Changed\n- `apply.Options` is another\n")},
			want:   []string{"announced"},
		},
		"announced on the day of the release": {
			change: map[string]string{"apply/apply.go": otherOptions, "CHANGELOG.md": changelog("## Unreleased\n\n## [0.2.0] - 2026-02-01\n### Breaking\n- `apply`: Options.Path is Options.Dir\n")},
			want:   []string{"announced"},
		},
		"announced under another heading": {
			change: map[string]string{"apply/apply.go": otherOptions, "CHANGELOG.md": changelog("## Unreleased\n### Added\n- `apply`: more\n### Fixed\n- `apply`: less\n")},
			fails:  true, want: []string{"incompatible: ./apply.Options"},
		},
		"announced of another package": {
			change: map[string]string{"apply/apply.go": otherOptions, "CHANGELOG.md": changelog("## Unreleased\n### Breaking\n- `apply/nft`, `internal/apply`, `reapply`: all is new\n")},
			fails:  true, want: []string{"incompatible: ./apply.Options"},
		},
		"one of two is announced": {
			change: map[string]string{"apply/apply.go": otherOptions, "apply/nft/nft.go": "", "CHANGELOG.md": changelog("## Unreleased\n### Breaking\n- `apply/nft` is gone\n")},
			fails:  true, want: []string{"incompatible: ./apply.Options", "incompatible, and announced: package example.com/m/apply/nft: removed"},
		},
		"no changelog": {
			change: map[string]string{"apply/apply.go": otherOptions, "CHANGELOG.md": ""}, fails: true,
			want: []string{"incompatible: ./apply.Options"},
		},
		"a new major version": {
			change: map[string]string{"go.mod": "module example.com/m/v2\n\ngo 1.24\n", "apply/apply.go": otherOptions},
			want:   []string{"apidiff: v0.1.0 is another module"},
		},
		"it does not build": {change: map[string]string{"apply/apply.go": "package apply\n\nfunc F() { return 1 }\n"}, fails: true, not: []string{passes}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRepository(t, released)
			r.git("tag", "v0.1.0")
			// Neither is the last release: one is of a nested module, one promises nothing.
			r.git("commit", "-q", "--allow-empty", "-m", "next")
			r.git("tag", "nested/v0.9.0")
			r.git("tag", "v0.2.0-rc.1")
			r.write(c.change)
			said, passed := r.run()
			assert.Equal(t, !c.fails, passed, "%s", said)
			for _, want := range c.want {
				assert.Contains(t, said, want)
			}
			for _, not := range c.not {
				assert.NotContains(t, said, not)
			}
		})
	}
}

// TestWithoutRelease needs no tool: it is what CI has before the first tag.
func TestWithoutRelease(t *testing.T) {
	r := newRepository(t, released)
	said, passed := r.run()
	assert.True(t, passed)
	assert.Equal(t, "apidiff: there is no release yet: nothing is compared\n", said)

	r.git("tag", "v0.1.0")
	r.git("commit", "-q", "--allow-empty", "-m", "next")
	shallow := repository{t, filepath.Join(t.TempDir(), "clone")}
	r.git("clone", "-q", "--depth", "1", "--no-tags", "file://"+r.dir, shallow.dir)
	said, passed = shallow.run()
	assert.True(t, passed)
	assert.Contains(t, said, "shallow clone without a release's tag")
}

// TestNestedModule: it is compared with what the release's commit has of it, and announced in the one changelog.
func TestNestedModule(t *testing.T) {
	netnstest.Require(t, tool)
	r := newRepository(t, released)
	r.git("tag", "v0.1.0")
	r.write(map[string]string{
		"nested/nested.go": "package nested\n\nfunc G() {}\n",
		"later/go.mod":     "module example.com/m/later\n\ngo 1.24\n", "later/l.go": "package later\n",
	})
	nested := r
	nested.dir = filepath.Join(r.dir, "nested")
	said, passed := nested.run()
	assert.False(t, passed, said)
	assert.Contains(t, said, "incompatible: F: removed")
	r.write(map[string]string{"CHANGELOG.md": "# Changelog\n\n## Unreleased\n### Breaking\n- `nested`: F is gone\n\n## 0.1.0\n"})
	said, passed = nested.run()
	assert.True(t, passed, said)
	nested.dir = filepath.Join(r.dir, "later")
	said, passed = nested.run()
	assert.True(t, passed, said)
	assert.Contains(t, said, "v0.1.0 has no module example.com/m/later")
}
