package version

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestFrom(t *testing.T) {
	checkout := []debug.BuildSetting{
		{Key: "-trimpath", Value: "true"},
		{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"},
		{Key: "vcs.time", Value: "2026-11-21T09:00:00Z"},
		{Key: "vcs.modified", Value: "true"},
	}
	clean := []debug.BuildSetting{checkout[1], checkout[2], {Key: "vcs.modified", Value: "false"}}
	main := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Path: Module, Version: version}, Settings: settings}
	}
	dependency := func(m debug.Module) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Path: "example.com/mesh", Version: "v9.0.0"}, Deps: []*debug.Module{&m}, Settings: checkout}
	}
	tests := map[string]struct {
		build                 *debug.BuildInfo
		version, commit, date string // the linker's
		want                  string
	}{
		"nothing is known":     {want: "devel (GO)"},
		"built as a directory": {build: main("(devel)"), want: "devel (GO)"},
		"installed at a tag":   {build: main("v1.2.3"), want: "v1.2.3 (GO)"},
		"a tag's checkout":     {build: main("v1.2.3", clean...), want: "v1.2.3 (commit 0123456789ab, 2026-11-21T09:00:00Z, GO)"},
		"a changed checkout": {build: main("v0.0.0-20261121090000-0123456789ab+dirty", checkout...),
			want: "v0.0.0-20261121090000-0123456789ab+dirty (commit 0123456789ab, modified, 2026-11-21T09:00:00Z, GO)"},
		"the linker's version": {build: main("(devel)"), version: "v2.0.0", want: "v2.0.0 (GO)"},
		"the linker's version of a checkout": {build: main("v0.0.0-1", clean...), version: "v2.0.0",
			want: "v2.0.0 (commit 0123456789ab, 2026-11-21T09:00:00Z, GO)"},
		"all is the linker's": {build: main("v0.0.0-1", checkout...), version: "v2.0.0", commit: "abc", date: "2026-01-01T00:00:00Z",
			want: "v2.0.0 (commit abc, 2026-01-01T00:00:00Z, GO)"},
		"the linker's changed checkout": {build: main("(devel)"), version: "v2.0.0-dirty", commit: "0123456789abcdef-dirty",
			want: "v2.0.0-dirty (commit 0123456789ab, modified, GO)"},
		"in another's program":                   {build: dependency(debug.Module{Path: Module, Version: "v1.2.3"}), want: "v1.2.3 (GO)"},
		"in another's program, from a directory": {build: dependency(debug.Module{Path: Module, Version: "v1.2.3", Replace: &debug.Module{Path: "../meshcni"}}), want: "devel (GO)"},
		"in another's program, from a fork": {build: dependency(debug.Module{Path: Module, Version: "v1.2.3",
			Replace: &debug.Module{Path: "example.com/fork", Version: "v1.2.4"}}), want: "v1.2.4 (GO)"},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			got := from(c.build, c.version, c.commit, c.date)
			want := c.want[:len(c.want)-len("GO)")] + runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ")"
			assert.Equal(t, want, got.String())
		})
	}
}

func TestThisBuild(t *testing.T) {
	assert.Equal(t, Get().Version, String())
	assert.Equal(t, Get().String(), Long())
	assert.NotEmpty(t, String())
}
