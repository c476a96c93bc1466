package plugin_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestWhatCheckCannotTellPasses: whatever keeps CHECK from an answer is no reason to make a pod anew, and is logged.
func TestWhatCheckCannotTellPasses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spoil  func(*testing.T, *call)
		detail string
		reason string
	}{
		"live rules unreadable": {func(_ *testing.T, c *call) { c.netns.CheckErr = errors.New("exit status 4") }, "exit status 4", "selected"},
		"no time": {func(_ *testing.T, c *call) {
			c.netns.CheckErr = context.DeadlineExceeded
		}, "deadline", "selected"},
		"backend unclear":      {func(_ *testing.T, c *call) { c.netns.BackendErr = errors.New("netlink") }, "netlink", "selected"},
		"backend gone":         {func(_ *testing.T, c *call) { c.netns.BackendErr = apply.ErrNoBackend }, "no usable firewall backend", "selected"},
		"namespace unreadable": {func(_ *testing.T, c *call) { c.netns.OpenErr = errors.New("too many open files") }, "too many open files", "selected"},
		"a panic": {func(_ *testing.T, c *call) {
			c.plugin.OpenNetNS = func(string) (plugin.NetNS, error) { return panicking{}, nil }
		}, "ouch", "selected"},
		"a panic in the namespace": {func(_ *testing.T, c *call) {
			c.netns.CheckErr = &netnsexec.PanicError{Value: "ouch", Stack: []byte("here")}
		}, "ouch", "selected"},
		"another namespace": {func(_ *testing.T, c *call) { c.netns.Inode++ }, "another network namespace", "no-record"},
		"another interface": {func(_ *testing.T, c *call) { c.env["CNI_IFNAME"] = "net1" }, "no record", "no-record"},
		"another container": {func(_ *testing.T, c *call) { c.env["CNI_CONTAINERID"] = "beef" }, "no record", "no-record"},
		"another network":   {func(_ *testing.T, c *call) { c.config["name"] = "other" }, "no record", "no-record"},
		"no records kept": {func(_ *testing.T, c *call) {
			c.plugin.Attachments = func(netconf.Config) attachment.Store { return attachment.Store{} }
		}, "no record", "no-record"},
		"a broken record": {func(t *testing.T, c *call) {
			files, err := filepath.Glob(c.plugin.Attachments(netconf.Config{}).Dir + "/*")
			require.NoError(t, err)
			require.Len(t, files, 1)
			require.NoError(t, os.WriteFile(files[0], []byte(`{"version":1`), 0o600))
		}, "is no record", "no-record"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCall()
			require.Zero(t, c.run(t).exit)
			c.netns.Live = ruleset.Ruleset{} // which it would find, could it look
			c.env["CNI_COMMAND"] = "CHECK"
			c.plugin.OpenPods = nil
			tc.spoil(t, c)
			out := c.run(t)
			assert.Zero(t, out.exit, out.stdout)
			assert.Empty(t, out.stdout)
			d := out.record(t, "decision")
			assert.Equal(t, "unknown", d["outcome"])
			assert.Equal(t, tc.reason, d["reason"])
			assert.Contains(t, d["detail"], tc.detail)
		})
	}
}

// TestCheckOfFamiliesThatWereNotThere: a family that the kernel lacked had no rules set up, so that they are not there is no
// loss, also when the kernel has it by now.
func TestCheckOfFamiliesThatWereNotThere(t *testing.T) {
	t.Parallel()
	c := newCall()
	c.config["prevResult"] = object{"ips": []object{{"address": "fd00::5/64"}, {"address": "10.244.1.5/24"}}}
	c.netns.Skip = []ruleset.Family{ruleset.IPv6}
	require.Zero(t, c.run(t).exit)
	require.NotNil(t, c.netns.Live.IPv6)
	c.netns.Live.IPv6, c.netns.Skip = nil, nil
	c.env["CNI_COMMAND"] = "CHECK"
	d := c.run(t).record(t, "decision")
	assert.Equal(t, "checked", d["outcome"])
	assert.Equal(t, []any{"ipv4"}, d["families"])
}

// TestFailedAddLeavesTheRecord: rules that are still in force are still what CHECK goes by.
func TestFailedAddLeavesTheRecord(t *testing.T) {
	t.Parallel()
	c := newCall()
	require.Zero(t, c.run(t).exit)
	c.netns.ApplyErr = errors.New("exit status 2")
	c.run(t).fails(t, 101, "exit status 2")
	c.env["CNI_COMMAND"] = "CHECK"
	assert.Equal(t, "checked", c.run(t).record(t, "decision")["outcome"])
}
