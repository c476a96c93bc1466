package redirectcmd_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/linkerd"
)

// template makes the arguments as the injection templates do: the same ones in the same order since 1.10, with more at the end.
func template(changes map[string]string, more ...string) []string {
	args := []string{"-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*", "-d", "15090,15021,15020"}
	for flag, value := range changes {
		if i := slices.Index(args, flag); i >= 0 {
			args[i+1] = value
		} else {
			args = append(args, flag, value)
		}
	}
	return append(args, more...)
}

const level = "--log_output_level=default:info" // since 1.12

// TestIstioCommand is the command's contract beside the rules: what it says and refuses.
func TestIstioCommand(t *testing.T) {
	t.Parallel()
	accounts := map[string]string{
		"/etc/passwd": "root:x:0:0::/root:/bin/sh\nenvoy:x:101:102::/:/bin/false\nlone:x:500:500::/:\nbad:x:many:1::/:\n",
		"/etc/group":  "root:x:0:\nenvoy:x:102:\nstaff:x:50:a,b\n",
	}
	owner := func(uid, gid string) []string {
		return []string{"--uid-owner " + uid + " -j RETURN", "--gid-owner " + gid + " -j RETURN"}
	}
	for name, tt := range map[string]struct {
		args        []string
		env         []string
		files       map[string]string
		code        int
		out, errOut []string
		not         string // in neither
	}{
		"absent is none":           {not: "ISTIO_INBOUND"},
		"unknown flag":             {args: []string{"--frob"}, code: 2, errOut: []string{"unknown flag: --frob"}},
		"a flag of apply alone":    {args: []string{"--dialect", "istio"}, code: 2, errOut: []string{"unknown flag: --dialect"}},
		"stray argument":           {args: []string{"sidecar"}, code: 2, errOut: []string{`"sidecar"`}},
		"all bad values at once":   {args: []string{"-p", "x", "-b", "80-90", "-u", "nobody"}, code: 2, errOut: []string{`-p (--envoy-port)="x"`, `-b (--istio-inbound-ports)="80-90"`, `-u (--proxy-uid)="nobody": "nobody" is no number`, "/etc/passwd does not have the name"}},
		"a level that is none":     {args: []string{"--log_output_level=default:loud"}, code: 2, errOut: []string{`"loud" is not one of debug, info`}},
		"names":                    {args: []string{"-u", "envoy", "-g", "staff"}, files: accounts, out: owner("101", "50")},
		"names and numbers":        {args: []string{"-u", "1337,envoy", "-g", "0,staff"}, files: accounts, out: append(owner("101", "50"), "--uid-owner 1337", "--gid-owner 0 ")},
		"groups as users":          {args: []string{"-u", "envoy"}, files: accounts, out: owner("101", "102")},
		"groups as users, no name": {args: []string{"-u", "lone"}, files: accounts, out: owner("500", "500")},
		"a number that is none":    {args: []string{"-u", "bad"}, files: accounts, code: 2, errOut: []string{`"bad" is no number`}},
		"owner groups by name":     {env: []string{"ISTIO_OUTBOUND_OWNER_GROUPS=staff,7"}, files: accounts, out: []string{"! --gid-owner 50", "! --gid-owner 7"}},
		"the proxy's own name":     {args: []string{"-u", "istio-proxy"}, files: accounts, out: owner("1337", "1337")},
		"it is in the file":        {args: []string{"-u", "istio-proxy"}, files: map[string]string{"/etc/passwd": "istio-proxy:x:2000:2001::/:", "/etc/group": ""}, out: owner("2000", "2000")},
		"no user, in the file":     {files: map[string]string{"/etc/passwd": "istio-proxy:x:2000:2001::/:"}, out: owner("2000", "2000")},
		"no user":                  {files: accounts, out: owner("1337", "1337")},
		"no user, no files":        {out: owner("1337", "1337")},
		"no user, but a variable":  {env: []string{"ENVOY_USER=envoy"}, files: accounts, out: owner("101", "101")},
		"a variable of nobody":     {env: []string{"ENVOY_USER=nobody"}, files: accounts, out: owner("1337", "1337")},

		"DNS of no server":             {args: []string{"--redirect-dns"}, files: map[string]string{"/etc/resolv.conf": "search a\n"}, errOut: []string{"warning: no DNS query is captured: /etc/resolv.conf names no server"}, not: "15053"},
		"DNS of no usable one":         {args: []string{"--redirect-dns"}, files: map[string]string{"/etc/resolv.conf": "nameserver fe80::1%eth0\n"}, errOut: []string{"no address that a rule can name", "no DNS query is captured"}, not: "15053"},
		"DNS of one":                   {args: []string{"--redirect-dns"}, files: map[string]string{"/etc/resolv.conf": "nameserver 10.96.0.10\n"}, out: []string{"-d 10.96.0.10/32 -p udp -m udp --dport 53 -j REDIRECT --to-ports 15053"}},
		"DNS of who knows":             {args: []string{"--redirect-dns"}, code: 2, errOut: []string{"resolv.conf"}},
		"a variable's nonsense":        {env: []string{"DROP_INVALID=perhaps"}, errOut: []string{`variable DROP_INVALID="perhaps": "perhaps" is not a boolean, and counts as unset`}, not: "INVALID -j DROP"},
		"a flag's nonsense":            {args: []string{"--drop-invalid=perhaps"}, code: 2, errOut: []string{"perhaps"}},
		"a variable that does nothing": {env: []string{"CNI_MODE=true", "RECONCILE=false"}, errOut: []string{"--cni-mode has no effect"}, not: "--reconcile"},
		"routes":                       {args: []string{"configure-routes", "-m", "TPROXY"}, out: []string{"fwmark 0x539 lookup 133", "table 133"}, not: "ISTIO_"},
		"routes, none needed":          {args: []string{"configure-routes"}, out: []string{"nothing to add"}},
		"routes, unknown flag":         {args: []string{"configure-routes", "--frob"}, code: 2, errOut: []string{"unknown flag: --frob"}},
		"cleanup":                      {args: []string{"--cleanup-only"}, out: []string{"would remove chains named ISTIO_*"}, not: "*nat"},
		"skipped":                      {args: []string{"--cleanup-only", "--skip-rule-apply"}, not: "would remove"},
		"binary that is none":          {args: []string{"--force-iptables-binary", "pf"}, code: 2, errOut: []string{`--force-iptables-binary="pf": not nft, legacy`}},
		"quiet":                        {args: []string{"--log_output_level=default:error", "--cni-mode"}, not: "ISTIO_"},
		"less quiet":                   {args: []string{"--log_output_level=warn", "--cni-mode"}, errOut: []string{"--cni-mode has no effect"}, not: "ISTIO_"},
		"of another scope":             {args: []string{"--log_output_level=dns:none,default:debug"}, out: []string{"*nat"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := tt.files
			if files == nil {
				files = map[string]string{}
			}
			got := call{env: append([]string{"DRY_RUN=true"}, tt.env...), files: files}.run(t, append([]string{"istio-iptables"}, tt.args...)...)
			assert.Equal(t, tt.code, got.code, "%s%s", got.out, got.errOut)
			for _, part := range tt.out {
				assert.Contains(t, got.out, part)
			}
			for _, part := range tt.errOut {
				assert.Contains(t, got.errOut, part)
			}
			if tt.not != "" {
				assert.NotContains(t, got.out+got.errOut, tt.not)
			}
		})
	}
}

// TestIstioFlagsThatDoNothing: each is named, unless it is off.
func TestIstioFlagsThatDoNothing(t *testing.T) {
	t.Parallel()
	plain := call{}.run(t, "istio-iptables", "-n")
	require.Zero(t, plain.code)
	for _, f := range []string{
		"--cni-mode", "--host-nsenter-exec", "--iptables-trace-logging", "--nftables-trace-logging", "--restore-format", "--force-apply", "--reconcile", "--iptables-version=1.8.9",
		"--output-paths=/tmp/x", "--log_caller=all", "--log_rotate=/x", "--log_rotate_max_age=2", "--log_rotate_max_backups=3", "--log_rotate_max_size=4",
		"--log_stacktrace_level=default:none", "--log_target=stderr", "--vklog=1",
	} {
		got := call{}.run(t, "istio-iptables", "-n", f)
		assert.Zero(t, got.code, "%s: %s", f, got.errOut)
		assert.Equal(t, plain.out, got.out, f)
		name, _, _ := strings.Cut(strings.Replace(f, "--nftables-", "--iptables-", 1), "=")
		assert.Contains(t, got.errOut, "warning: "+name+" has no effect: ")
	}
	for _, f := range []string{"--cni-mode=false", "--native-nftables=false", "--force-legacy-iptables=false", "--iptables-version=", "--log_as_json=false"} {
		assert.Equal(t, plain, call{}.run(t, "istio-iptables", "-n", f), f)
	}
	unknown := call{}.run(t, "apply", "--cni-mode", "--dry-run")
	assert.Equal(t, 2, unknown.code, "apply has flags of its own")
}

// TestIstioLogsJSON: all that is said is lines of JSON, mistakes too.
func TestIstioLogsJSON(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-n", "--cni-mode"}, {"-b", "x"}} {
		got := call{}.run(t, append([]string{"istio-iptables", "--log_as_json"}, args...)...)
		var levels []string
		for line := range strings.Lines(got.out + got.errOut) {
			var o struct{ Level, Time, Msg string }
			require.NoError(t, json.Unmarshal([]byte(line), &o), line)
			assert.NotEmpty(t, o.Time)
			assert.NotEmpty(t, o.Msg)
			levels = append(levels, o.Level)
		}
		if got.code == 0 {
			assert.Contains(t, levels, "info")
			assert.Contains(t, levels, "warn")
		} else {
			assert.Contains(t, levels, "error")
		}
	}
}

// TestNoIstioInAnothersProgram: the program of another mesh has no command of Istio's.
func TestNoIstioInAnothersProgram(t *testing.T) {
	var out, errOut bytes.Buffer
	p := redirectcmd.Program{Dialects: []dialect.Dialect{linkerd.New()}, Stdout: &out, Stderr: &errOut}
	assert.Equal(t, 2, p.Main(t.Context(), []string{"istio-iptables"}))
	assert.Contains(t, errOut.String(), `unknown command "istio-iptables"`)
	assert.Equal(t, 0, p.Main(t.Context(), []string{"--help"}))
	assert.NotContains(t, out.String(), "istio-iptables")
}
