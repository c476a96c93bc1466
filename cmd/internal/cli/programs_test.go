package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// programs are all of them, with the other spellings of --version that each has.
var programs = map[string][]string{
	"meshcni":          {"version"},
	"meshcni-node":     {"version"},
	"meshcni-redirect": {"version"},
	"meshcni-repair":   nil,
	"meshcni-taint":    {"version"},
	"kubectl-meshcni":  {"version"},
}

// maxPluginBytes is the plugin's budget: it is copied to each node and read in
// for each pod.
const maxPluginBytes = 16_000_000

func TestEveryProgramIsTested(t *testing.T) {
	dirs, err := filepath.Glob("../../*meshcni*")
	require.NoError(t, err)
	for _, d := range dirs {
		assert.Contains(t, programs, filepath.Base(d))
		readSources(t, d)
	}
	assert.Len(t, dirs, len(programs))
}

// readSources makes the sources inputs of the cached test result, which what
// the go command reads in a process of its own is not.
func readSources(t *testing.T, dir string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, f := range files {
		_, err := os.ReadFile(f)
		require.NoError(t, err)
	}
}

// build compiles all programs into a directory of their own. Whatever the
// machine's go command does with checkouts, here it records none.
func build(t *testing.T, flags ...string) (bin string) {
	t.Helper()
	bin = t.TempDir()
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-o", bin}, flags...)
	for program := range programs {
		args = append(args, "./"+program)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}

func goSuffix() string {
	return regexp.QuoteMeta(runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ")")
}

// TestPrograms builds the programs as a release does, and as anybody does.
func TestPrograms(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // the programs are for Linux
	}
	const variables = "-X github.com/meshcni/meshcni/internal/program/version."
	tests := map[string]struct {
		flags []string
		want  string // a regular expression, for what follows the name
	}{
		"linker": {
			flags: []string{"-ldflags", "-s -w " + variables + "version=v1.2.3 " + variables + "commit=0123456789abcdef " + variables + "date=2026-11-21T09:00:00Z"},
			want:  `v1\.2\.3 \(commit 0123456789ab, 2026-11-21T09:00:00Z, ` + goSuffix(),
		},
		"not told": {
			flags: []string{"-ldflags", "-s -w"},
			want:  `devel \(` + goSuffix(),
		},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			bin := build(t, c.flags...)
			for program, spellings := range programs {
				for _, arg := range append([]string{"--version"}, spellings...) {
					assert.Regexp(t, "^"+program+" "+c.want+"\n$", run(t, filepath.Join(bin, program), arg), "%s %s", program, arg)
				}
			}
			st, err := os.Stat(filepath.Join(bin, "meshcni"))
			require.NoError(t, err)
			assert.LessOrEqual(t, st.Size(), int64(maxPluginBytes), "bytes of the plugin")
		})
	}
}

// run returns stdout of a program that must succeed and say nothing on stderr.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd := exec.Command(program, args...)
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run(), "%s", stderr.String())
	assert.Empty(t, stderr.String())
	return stdout.String()
}
