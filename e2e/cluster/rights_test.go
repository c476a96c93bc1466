package cluster_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// agentPid is the process of the agent's container.
func agentPid(t *testing.T) int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	require.NoError(t, err)
	for _, l := range links {
		if exe, err := os.Readlink(l); err == nil && exe == "/usr/local/bin/meshcni-node" {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(l)))
			require.NoError(t, err)
			return pid
		}
	}
	require.Fail(t, "the agent does not run")
	return 0
}

// wantedCapabilities are those in the agent's manifest.
func wantedCapabilities(t *testing.T, c *cluster) []string {
	t.Helper()
	out := c.Run(t, "kubectl", "--namespace", system, "get", "daemonset", "meshcni-node",
		"-o", "jsonpath={.spec.template.spec.containers[0].securityContext.capabilities.add[*]}")
	return strings.Fields(out)
}

var capabilities = map[string]int{
	"CHOWN": unix.CAP_CHOWN, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW,
	"SYS_ADMIN": unix.CAP_SYS_ADMIN, "SYS_CHROOT": unix.CAP_SYS_CHROOT, "SYS_PTRACE": unix.CAP_SYS_PTRACE,
}

// writable lists the directories to which the agent's container can write: its volumes, two of them the pod's own, and those of every
// container.
var writable = []string{
	"/host/opt/cni/bin", "/host/opt/nri/plugins", "/host/etc/cni/net.d", "/run/meshcni", "/var/run/meshcni", zdsDir, "/var/run/meshcni-agent", "/unused",
	"/etc/hosts", "/dev", "/proc", "/sys/fs/cgroup",
}

// assertConfined holds a process to its container's security context: these capabilities and in no set any other, no way to
// more, a filter of system calls, and nothing to write to but its volumes.
func assertConfined(t *testing.T, pid int, wanted []string) {
	t.Helper()
	var mask uint64
	for _, name := range wanted {
		bit, ok := capabilities[name]
		require.True(t, ok, name)
		mask |= 1 << bit
	}
	status := map[string]string{}
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ":")
		status[key] = strings.TrimSpace(value)
	}
	for _, set := range []string{"CapEff", "CapPrm", "CapBnd"} {
		assert.Equal(t, fmt.Sprintf("%016x", mask), status[set], set)
	}
	assert.Equal(t, "1", status["NoNewPrivs"])
	assert.Equal(t, "2", status["Seccomp"], "a filter")

	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	require.NoError(t, err)
	for _, m := range strings.Split(strings.TrimSpace(string(mounts)), "\n") {
		fields := strings.Fields(m)
		point, options := fields[4], fields[5]
		if strings.HasPrefix(options, "rw") {
			known := slices.ContainsFunc(writable, func(dir string) bool { return within(point, dir) })
			assert.True(t, known, "%s can be written to", point)
		}
	}
}

// proof is the request by which the agent sees that it may not evict other nodes' pods: the policy has to refuse it. Where the chart grants neither, it
// sees that it may not watch the policy.
const proof = "create pods/eviction"

// assertRights compares what the roles of the agent and of the plugin grant with what each has asked for since a point of the API
// server's audit log: no more, and no less but for those rights that are for later.
func assertRights(t *testing.T, c *cluster, since int, later ...string) {
	t.Helper()
	granted := grants(t, c)
	for _, account := range []string{"meshcni-node", "meshcni-plugin"} {
		asked := map[string]int{}
		for _, call := range c.Server.Audit(t)[since:] {
			if call.User.Username == "system:serviceaccount:"+system+":"+account {
				text := call.String()
				if account == "meshcni-node" && (strings.HasPrefix(text, proof) || strings.Contains(text, " validatingadmissionpolic")) {
					text = strings.TrimSuffix(text, " FORBIDDEN")
				}
				assert.NotContains(t, text, "FORBIDDEN", account)
				asked[text]++
			}
		}
		var unused []string
		for _, grant := range granted[account] {
			if asked[grant] == 0 && !slices.Contains(later, grant) {
				unused = append(unused, grant)
			}
		}
		assert.NotEmpty(t, granted[account], account)
		assert.Empty(t, unused, "granted to %s, and not asked for: %v", account, asked)
	}
}

// grants are the rights of each service account, one a line as the API server's audit log has them.
func grants(t *testing.T, c *cluster) map[string][]string {
	t.Helper()
	var list struct {
		Items []struct {
			Kind     string
			Metadata struct{ Name string }
			Rules    []struct{ APIGroups, Resources, Verbs []string }
			RoleRef  struct{ Kind, Name string }
			Subjects []struct{ Name string }
		}
	}
	out := c.Run(t, "kubectl", "get", "roles,clusterroles,rolebindings,clusterrolebindings", "--namespace", system, "-l", "app.kubernetes.io/instance="+release, "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	roles, accounts := map[string][]string{}, map[string][]string{}
	for _, role := range list.Items {
		key := role.Kind + "/" + role.Metadata.Name
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				name, sub, _ := strings.Cut(resource, "/")
				if rule.APIGroups[0] != "" {
					name += "." + rule.APIGroups[0]
				}
				if sub != "" {
					name += "/" + sub
				}
				for _, verb := range rule.Verbs {
					roles[key] = append(roles[key], verb+" "+name)
				}
			}
		}
	}
	for _, binding := range list.Items {
		for _, account := range binding.Subjects {
			accounts[account.Name] = append(accounts[account.Name], roles[binding.RoleRef.Kind+"/"+binding.RoleRef.Name]...)
		}
	}
	return accounts
}
