package cluster_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/onenode"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// ambient is a mesh whose proxy is on the node; nothing of it is in its pods.
var ambient = mesh{dialect: "ambient", out: 15001, in: 15006}

// zdsDir is where the agent's socket for the proxy is, on the node.
const zdsDir = "/var/run/ztunnel"

// nodeProxy is the node's proxy as ztunnel's chart deploys it: on the pods' network, with the agent's socket from the host, and
// the new one beside the old one while it is replaced. More arguments can follow.
var nodeProxy = fmt.Sprintf(`apiVersion: apps/v1
kind: DaemonSet
metadata: {name: ztunnel, namespace: mesh}
spec:
  selector: {matchLabels: {app: ztunnel}}
  updateStrategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata: {labels: {app: ztunnel, istio.io/dataplane-mode: none}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: ztunnel
        image: %s
        args: [ztunnel, %[2]s/ztunnel.sock%%s]
        securityContext: {runAsUser: 0, capabilities: {drop: [ALL], add: [NET_ADMIN, SYS_ADMIN]}}
        readinessProbe: {exec: {command: [%s, cat, /ready]}, periodSeconds: 1, timeoutSeconds: 60}
        volumeMounts: [{name: zds, mountPath: %[2]s}]
      volumes: [{name: zds, hostPath: {path: %[2]s, type: DirectoryOrCreate}}]
`, image.Tool, zdsDir, image.ToolPath)

// startNodeProxy starts it, in a namespace of its own, until the test ends.
func startNodeProxy(t *testing.T, c *cluster, more ...string) {
	t.Helper()
	c.Run(t, "kubectl", "create", "namespace", "mesh")
	t.Cleanup(func() { stopNodeProxy(t, c) })
	c.Run(t, "kubectl", "--namespace", "mesh", "wait", "--for=create", "serviceaccount/default", "--timeout=5m")
	c.Apply(t, fmt.Sprintf(nodeProxy, strings.Join(append([]string{""}, more...), ", ")))
	nodeProxyReady(t, c)
}

func nodeProxyReady(t *testing.T, c *cluster) {
	t.Helper()
	c.Run(t, "kubectl", "--namespace", "mesh", "rollout", "status", "daemonset/ztunnel", "--timeout=5m")
}

func stopNodeProxy(t *testing.T, c *cluster) {
	t.Helper()
	c.Run(t, "kubectl", "delete", "namespace", "mesh", "--ignore-not-found", "--timeout=5m")
}

// plain creates pods that know of no mesh, whose readiness is asked by HTTP: an answer of a proxy would not do.
func (s shop) plain(t *testing.T, names ...string) {
	t.Helper()
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, `apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: %s
    args: [serve, "8080", "http:8081"]
    securityContext: {runAsUser: 1000}
    readinessProbe: {httpGet: {port: 8081, path: /}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 10}
    startupProbe: {httpGet: {port: 8081, path: /}, periodSeconds: 1, failureThreshold: 600} # its start may be slow, on a busy machine
    livenessProbe: {httpGet: {port: 8081, path: /}, periodSeconds: 1, failureThreshold: 2, timeoutSeconds: 10}
---
`, name, s.namespace, image.Tool)
	}
	s.Apply(t, b.String())
}

// join and quit label the namespace.
func (s shop) join(t *testing.T) {
	s.Run(t, "kubectl", "label", "namespace", s.namespace, "istio.io/dataplane-mode=ambient", "--overwrite")
}

func (s shop) quit(t *testing.T) {
	s.Run(t, "kubectl", "label", "namespace", s.namespace, "istio.io/dataplane-mode-")
}

// state waits until "meshcni-node pods" says so of pods, and the annotation too.
func (s shop) state(t *testing.T, want, annotation string, names ...string) {
	t.Helper()
	eventually(t, soon, strings.Join(names, ", ")+" is "+want, func() error {
		out, _ := s.Try("kubectl", "--namespace", system, "exec", "daemonset/meshcni-node", "--", "meshcni-node", "pods", "-o", "json")
		var now status
		if err := json.Unmarshal([]byte(out), &now); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		pods := s.running(t)
		var errs []error
		for _, name := range names {
			state, reason := now.capture(s.namespace, name)
			if said := pods[name].Annotations["ambient.istio.io/redirection"]; state != want || said != annotation {
				errs = append(errs, fmt.Errorf("%s is %q (%s), and its annotation %q", name, state, reason, said))
			}
		}
		return errors.Join(errs...)
	})
}

// running are the namespace's pods, by name.
func (s shop) running(t *testing.T) map[string]corev1.Pod {
	t.Helper()
	var list corev1.PodList
	require.NoError(t, json.Unmarshal([]byte(s.kubectl(t, "get", "pods", "-o", "json")), &list))
	byName := map[string]corev1.Pod{}
	for _, p := range list.Items {
		byName[p.Name] = p
	}
	return byName
}

// traffic makes connections from a pod's application, one after the other, until stop, which returns what they came to.
func (s shop) traffic(t *testing.T, from string, to ...string) (stop func() (fates []string)) {
	t.Helper()
	kubectl, err := onenode.Program("kubectl")
	require.NoError(t, err)
	args := []string{"--namespace", s.namespace, "exec", "-i", from, "-c", "app", "--", image.ToolPath, "load"}
	for _, address := range to {
		args = append(args, "tcp:"+address)
	}
	cmd := exec.CommandContext(t.Context(), kubectl, args...)
	cmd.Dir, cmd.Env = proctest.Root(), append(cmd.Environ(), s.Env()...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	require.NoError(t, err, &stderr)
	require.Equal(t, "begun\n", first)
	return func() []string {
		require.NoError(t, in.Close())
		text, err := io.ReadAll(lines)
		require.NoError(t, err)
		require.NoError(t, cmd.Wait(), &stderr)
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
}

// answered holds each fate to be an answer of one of the ports.
func answered(t *testing.T, fates []string, ports ...string) {
	t.Helper()
	t.Logf("connections:\n%s", strings.Join(fates, "\n"))
	for _, f := range fates {
		assert.Regexp(t, `^\d+ tcp:\S+ app:(`+strings.Join(ports, "|")+`) orig=`, f)
	}
}

// cut is answered, but for one connection at most that was just being made when rules or listeners came or went. The kernel then takes
// its next packet for another connection's, or for nobody's, and the client is reset or waits in vain.
func cut(t *testing.T, fates []string, ports ...string) {
	t.Helper()
	for i, f := range fates {
		if regexp.MustCompile(`^1 tcp:\S+ (timeout|.*reset by peer|EOF)$`).MatchString(f) {
			t.Log("cut: ", f)
			fates = slices.Delete(fates, i, i+1)
			break
		}
	}
	answered(t, fates, ports...)
}

// firewall is the rules, the routing and what else the agent sets in a pod's network namespace.
func (s shop) firewall(t *testing.T, name string) string {
	t.Helper()
	ip := s.ip(t, name)
	all, err := filepath.Glob("/run/netns/cni-*")
	require.NoError(t, err)
	for _, ns := range all {
		addresses, err := exec.Command("nsenter", "--net="+ns, "ip", "-o", "-4", "addr").CombinedOutput()
		if err != nil || !strings.Contains(string(addresses), " "+ip+"/") {
			continue
		}
		var b strings.Builder
		for _, command := range []string{"nft -s list ruleset", "iptables-legacy-save", "ip rule", "ip -6 rule", "ip route show table 100", "cat /proc/sys/net/ipv4/tcp_migrate_req"} {
			words := strings.Fields(command)
			out, _ := exec.Command("nsenter", append([]string{"--net=" + ns}, words...)...).Output() // a table that is not there is an error
			fmt.Fprintf(&b, "%s:\n%s", command, counters.ReplaceAll(out, nil))
		}
		return b.String()
	}
	require.Fail(t, "no network namespace has the address", ip)
	return ""
}

var counters = regexp.MustCompile(`(?m)^#.*\n`)

// captured: the pods are in the mesh, which their packets show, from and to pod client of another shop.
func (s shop) captured(t *testing.T, other shop, names ...string) {
	t.Helper()
	s.state(t, "captured", "enabled", names...)
	client, pods := other.ip(t, "client"), s.running(t)
	for _, name := range names {
		ip := pods[name].Status.PodIP
		assert.Equal(t, "15001 for "+client+":8080", s.dial(t, name, client+":8080"), "out of %s", name)
		assert.Equal(t, "15006 for "+ip+":8080", other.dial(t, "client", ip+":8080"), "into %s", name)
	}
}

// outside: no packet of the pods goes to the proxy.
func (s shop) outside(t *testing.T, other shop, names ...string) {
	t.Helper()
	client, pods := other.ip(t, "client"), s.running(t)
	for _, name := range names {
		ip := pods[name].Status.PodIP
		assert.Equal(t, "8080 for "+client+":8080", s.dial(t, name, client+":8080"), "out of %s", name)
		assert.Equal(t, "8080 for "+ip+":8080", other.dial(t, "client", ip+":8080"), "into %s", name)
	}
}

// readySince is when a pod became ready last.
func (s shop) readySince(t *testing.T, name string) string {
	t.Helper()
	return s.kubectl(t, "get", "pod", name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].lastTransitionTime}`)
}

// undisturbed: no container of the pods was started again, and each is ready.
func (s shop) undisturbed(t *testing.T, names ...string) {
	t.Helper()
	pods := s.running(t)
	unhealthy := s.kubectl(t, "get", "events", "--field-selector", "reason=Unhealthy", "-o", `jsonpath={range .items[*]}{.involvedObject.name}: {.message}{"\n"}{end}`)
	for _, name := range names {
		status := pods[name].Status
		if assert.Len(t, status.ContainerStatuses, 1, name) {
			assert.Zero(t, status.ContainerStatuses[0].RestartCount, name)
		}
		ready := slices.IndexFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
		assert.True(t, ready >= 0 && status.Conditions[ready].Status == corev1.ConditionTrue, "%s is not ready", name)
		for line := range strings.Lines(unhealthy) {
			assert.False(t, strings.HasPrefix(line, name+": ") && strings.Contains(line, "malformed"), "a probe met the proxy: %s", line)
		}
	}
}

// TestAmbient: running pods join the mesh and leave it, and whatever is replaced, killed or taken away meanwhile, those in the mesh
// are captured, those outside are not, and no connection is refused. Of those being made at the moment in which a pod joins or leaves,
// one may be cut.
func TestAmbient(t *testing.T) {
	c := sharedCluster(t)
	asFound := nodeState(t)
	s := newShop(t, c, "cafe")
	s.mesh = ambient
	other := newShop(t, c, "apart")
	other.plain(t, "client")
	s.plain(t, "cart", "web")
	since := install(t, c, "--set", "ambient.enabled=true", "--set", "ambient.verifyInterval=2s")
	startNodeProxy(t, c)
	s.ready(t, "cart", "web")
	other.ready(t, "client")
	web, client := s.ip(t, "web"), other.ip(t, "client")
	captured := func(t *testing.T, names ...string) { t.Helper(); s.captured(t, other, names...) }
	outside := func(t *testing.T, names ...string) { t.Helper(); s.outside(t, other, names...) }
	before, readySince := s.firewall(t, "web"), s.readySince(t, "web")
	outside(t, "cart", "web")

	step(t, c, "running pods join", func(t *testing.T) {
		in, out := other.traffic(t, "client", web+":8080"), s.traffic(t, "cart", client+":8080")
		s.join(t)
		captured(t, "cart", "web")
		cut(t, in(), "8080", "15006")
		cut(t, out(), "8080", "15001")
		s.undisturbed(t, "cart", "web")
	})

	step(t, c, "new pods are captured before they start", func(t *testing.T) {
		s.plain(t, "late")
		s.ready(t, "late")
		captured(t, "late")
	})

	step(t, c, "the proxy is replaced under load", func(t *testing.T) {
		in, out := other.traffic(t, "client", web+":8080"), s.traffic(t, "cart", client+":8080")
		c.Run(t, "kubectl", "--namespace", "mesh", "rollout", "restart", "daemonset/ztunnel")
		nodeProxyReady(t, c)
		eventually(t, soon, "the old proxy is gone", func() error {
			if pods := c.Run(t, "kubectl", "--namespace", "mesh", "get", "pods", "-o", "name"); len(strings.Fields(pods)) != 1 {
				return errors.New(pods)
			}
			return nil
		})
		// What waits in the queue of a listener that closes goes to the new proxy's, by net.ipv4.tcp_migrate_req, which the agent sets.
		// None is refused, and none goes past the proxy.
		for _, name := range []string{"cart", "web", "late"} {
			assert.Contains(t, s.firewall(t, name), "tcp_migrate_req:\n1\n", name)
		}
		cut(t, in(), "15006")
		cut(t, out(), "15001")
		captured(t, "cart", "web", "late")
	})

	step(t, c, "the agent is replaced, and killed", func(t *testing.T) {
		in, out := other.traffic(t, "client", web+":8080"), s.traffic(t, "cart", client+":8080")
		c.Run(t, "kubectl", "--namespace", system, "rollout", "restart", "daemonset/meshcni-node")
		rolledOut(t, c)
		s.plain(t, "after")
		s.ready(t, "after")
		captured(t, "cart", "web", "late", "after")
		require.NoError(t, syscall.Kill(agentPid(t), syscall.SIGKILL))
		captured(t, "cart", "web", "late", "after")
		answered(t, in(), "15006")
		answered(t, out(), "15001")
		s.undisturbed(t, "cart", "web", "late", "after")
	})

	step(t, c, "rights", func(t *testing.T) {
		assertConfined(t, agentPid(t), wantedCapabilities(t, c))
		assertRights(t, c, since, "get pods", "get daemonsets.apps", "get nodes", "get namespaces", "patch events")
	})

	step(t, c, "running pods leave", func(t *testing.T) {
		in, out := other.traffic(t, "client", web+":8080"), s.traffic(t, "cart", client+":8080")
		s.quit(t)
		s.state(t, "outside", "", "cart", "web", "late", "after")
		outside(t, "cart", "web", "late", "after")
		cut(t, in(), "8080", "15006")
		cut(t, out(), "8080", "15001")
		eventually(t, soon, "its network is as it was, once the proxy's connections have ended", func() error {
			if now := s.firewall(t, "web"); now != before {
				return errors.New(now)
			}
			return nil
		})
		s.undisturbed(t, "cart", "web", "late", "after")
	})

	step(t, c, "what leaves the node takes its pods along", func(t *testing.T) {
		s.join(t)
		captured(t, "cart", "web")
		in := other.traffic(t, "client", web+":8080")
		uninstall(t, c)
		stopNodeProxy(t, c)
		outside(t, "cart", "web", "late", "after")
		cut(t, in(), "8080", "15006")
		assert.Equal(t, before, s.firewall(t, "web"), "its network is as it was")
		assert.Empty(t, s.kubectl(t, "get", "pods", "-o", `jsonpath={.items[*].metadata.annotations.ambient\.istio\.io/redirection}`))
		s.undisturbed(t, "cart", "web")
		assert.Equal(t, readySince, s.readySince(t, "web"), "each probe came through, before, during and after")
	})
	s.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
	other.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
	assert.Equal(t, asFound, nodeState(t), "the node is as it was")
	assert.Equal(t, kept, slices.DeleteFunc(s.Changes(t), ofRecords), "what running pods might have needed")
}

// nodeState is what an agent could leave on a node besides files: rules, sets, routing, mounts and sockets.
func nodeState(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, command := range []string{"nft -s list ruleset", "iptables-legacy-save", "ip rule", "ip -6 rule", "ip route show table 100", "ip -6 route show table 100"} {
		words := strings.Fields(command)
		out, _ := exec.Command(words[0], words[1:]...).Output() // a table that is not there is an error
		fmt.Fprintf(&b, "%s:\n%s", command, counters.ReplaceAll(out, nil))
	}
	for _, line := range strings.Split(fileText(t, "/proc/self/mountinfo"), "\n") {
		if fields := strings.Fields(line); len(fields) > 4 && (within(fields[4], "/run/meshcni") || within(fields[4], "/var/run/meshcni")) {
			fmt.Fprintln(&b, "mounted:", fields[4])
		}
	}
	sockets, err := filepath.Glob(zdsDir + "/*")
	require.NoError(t, err)
	fmt.Fprintln(&b, "sockets:", sockets)
	return b.String()
}
