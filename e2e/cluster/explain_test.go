package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// ExplainFailure prints, when the test has failed in the end, what says most about why. It does so before the clean-ups that
// were registered earlier, and once for a test with its parts.
func (c *cluster) ExplainFailure(t testing.TB) {
	t.Helper()
	from := map[string]int64{}
	for file := range told {
		if info, err := os.Stat(file); err == nil {
			from[file] = info.Size()
		}
	}
	t.Cleanup(func() {
		test, _, _ := strings.Cut(t.Name(), "/")
		if !t.Failed() || c.explained == test {
			return
		}
		c.explained = test
		for name, p := range c.Processes {
			if !p.Running() {
				t.Log(name + " has ended:\n" + p.Tail(1000))
			}
		}
		t.Log("pods:\n" + c.say("kubectl", "get", "pods", "-A", "-o", "wide"))
		t.Log("warnings:\n" + tail(c.say("kubectl", "get", "events", "-A", "--field-selector=type=Warning", "--sort-by=.lastTimestamp", "-o",
			"custom-columns=:involvedObject.namespace,:involvedObject.name,:reason,:message", "--no-headers"), 10, regexp.MustCompile(".")))
		t.Log("the agent:\n" + tail(c.say("kubectl", "-n", "meshcni-system", "logs", "daemonset/meshcni-node", "--tail=-1"), 12, troubles))
		if out, err := c.Try("kubectl", "-n", "meshcni-system", "logs", "daemonset/meshcni-node", "--tail=5", "--previous"); err == nil {
			t.Log("the agent that ended:\n" + tail(out, 5, regexp.MustCompile(".")))
		}
		t.Log(c.explainPods())
		for file, what := range told {
			text, err := os.ReadFile(file)
			if err != nil {
				continue
			}
			if said := tail(string(text[min(from[file], int64(len(text))):]), 6, what); said != "" {
				t.Log(file + ":\n" + said)
			}
		}
	})
}

// explainPods is what `kubectl meshcni explain` says of the pods, namespace by namespace, but for those of the cluster's own.
func (c *cluster) explainPods() string {
	var b strings.Builder
	for _, namespace := range strings.Fields(c.say("kubectl", "get", "namespaces", "-o", "jsonpath={.items[*].metadata.name}")) {
		if strings.HasPrefix(namespace, "kube-") {
			continue
		}
		out := c.say("kubectl", "meshcni", "explain", "--namespace", namespace, "--selector", "", "--brief")
		fmt.Fprintf(&b, "kubectl meshcni explain --namespace %s --selector '':\n%s\n", namespace, tail(out, 30, regexp.MustCompile(".")))
	}
	return strings.TrimSpace(b.String())
}

func (c *cluster) say(name string, args ...string) string {
	out, err := c.Try(name, args...)
	if err != nil {
		return strings.TrimSpace(out + " (" + err.Error() + ")")
	}
	return strings.TrimSpace(out)
}

var (
	// told are the logs of which a failed test tells what matches.
	told = map[string]*regexp.Regexp{
		"/run/meshcni/plugin.log":       troubles,
		machine.Dir + "/kubelet.log":    regexp.MustCompile(`^[EF]\d`),
		machine.Dir + "/containerd.log": regexp.MustCompile(`level=(error|fatal)`),
	}
	// troubles are records of ours that are worth a look.
	troubles = regexp.MustCompile(`"level":"(WARN|ERROR)"|^[^{]`)
	// noise is what kubelet and containerd call errors whenever a pod is deleted, or where file systems are in memory.
	noise = regexp.MustCompile(`not found|no relationship found|eviction_manager|cri_stats_provider|kubelet_pods.go|conn.go|MissingClusterDNS|CgroupV1|UnhandledError`)
)

// failing is a test that has failed, for a look at what is said of it.
type failing struct {
	testing.TB
	cleanups []func()
	said     strings.Builder
}

func (f *failing) Helper()           {}
func (f *failing) Name() string      { return "TestFailing/step" }
func (f *failing) Failed() bool      { return true }
func (f *failing) Cleanup(do func()) { f.cleanups = append(f.cleanups, do) }
func (f *failing) Log(args ...any)   { fmt.Fprintln(&f.said, args...) }

// assertExplained holds what is said of a failure to have what a reader looks for.
func (c *cluster) assertExplained(t *testing.T, wants ...string) {
	t.Helper()
	f := &failing{TB: t}
	c.ExplainFailure(f)
	for _, do := range f.cleanups {
		do()
	}
	for _, want := range append(wants, "pods:\n", "warnings:\n", "the agent:\n") {
		assert.Contains(t, f.said.String(), want)
	}
}

// tail returns the last lines that match, each cut to what can be read.
func tail(text string, lines int, matching *regexp.Regexp) string {
	var kept []string
	for _, l := range strings.Split(strings.TrimSpace(text), "\n") {
		if matching.MatchString(l) && !noise.MatchString(l) {
			kept = append(kept, l[:min(len(l), 500)])
		}
	}
	return strings.Join(kept[max(0, len(kept)-lines):], "\n")
}

// keepLogs copies the logs of a failed run to where they outlive the node.
func keepLogs() {
	to := proctest.Cache("e2e", "logs")
	if os.RemoveAll(to) != nil || os.MkdirAll(to, 0o755) != nil {
		return
	}
	copied := 0
	for _, pattern := range []string{machine.Dir + "/*.log", machine.Dir + "/server/*.log", "/run/meshcni/*.log", "/var/log/pods/*/*/*.log"} {
		found, _ := filepath.Glob(pattern)
		for _, f := range found {
			name := strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(f, "/var/log/pods/"), machine.Dir+"/"), "/", "_")
			if text, err := os.ReadFile(f); err == nil && os.WriteFile(filepath.Join(to, name), text, 0o600) == nil {
				copied++
			}
		}
	}
	fmt.Printf("cluster: %d logs are in %s\n", copied, to)
}
