package programs

import (
	"debug/buildinfo"
	"os"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/release/internal/source"
)

// TestCheck: a program that others would not get the same is refused.
func TestCheck(t *testing.T) {
	tree := source.Tree{Go: "go1.26.8"}
	with := func(settings ...debug.BuildSetting) *buildinfo.BuildInfo {
		return &buildinfo.BuildInfo{GoVersion: "go1.26.8", Settings: settings}
	}
	for name, tt := range map[string]struct {
		info *buildinfo.BuildInfo
		want string
	}{
		"another compiler": {&buildinfo.BuildInfo{GoVersion: "go1.26.7"}, "was built by go1.26.7, not go1.26.8"},
		"experiment":       {with(debug.BuildSetting{Key: "GOEXPERIMENT", Value: "x"}), "GOEXPERIMENT=x"},
		"tags":             {with(debug.BuildSetting{Key: "-tags", Value: "x"}), "-tags=x"},
		"race":             {with(debug.BuildSetting{Key: "-race", Value: "true"}), "-race=true"},
		"cgo":              {with(debug.BuildSetting{Key: "CGO_ENABLED", Value: "1"}), "CGO_ENABLED=1"},
		"of a checkout":    {with(debug.BuildSetting{Key: "vcs.revision", Value: "1"}), "vcs.revision=1"},
		"newer processors": {with(debug.BuildSetting{Key: "GOAMD64", Value: "v3"}), "GOAMD64=v3"},
		"no program":       {with(debug.BuildSetting{Key: "GOAMD64", Value: "v1"}), "bad magic number"},
	} {
		file := t.TempDir() + "/program"
		require.NoError(t, os.WriteFile(file, make([]byte, 64), 0o755))
		assert.ErrorContains(t, check(Program{Path: file, Info: tt.info}, tree, Linux("amd64")), tt.want, name)
	}
	// The shell is linked with the C library.
	info := with()
	assert.ErrorContains(t, check(Program{Path: "/bin/sh", Info: info}, tree, Linux(other())), "is for EM_")
	assert.ErrorContains(t, check(Program{Path: "/bin/sh", Info: info}, tree, Linux(native())), "is not static")
}

func native() string { return runtime.GOARCH }

func other() string {
	if native() == "amd64" {
		return "arm64"
	}
	return "amd64"
}
