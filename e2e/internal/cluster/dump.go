package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/meshcni/meshcni/e2e/internal/machine"
)

// ExplainFailure prints, when the test has failed in the end, what says most about why. It does so before the clean-ups that
// were registered earlier, and once a test.
func (c *Cluster) ExplainFailure(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() || c.explained == t.Name() {
			return
		}
		c.explained = t.Name()
		t.Log("pods:\n" + c.say("kubectl", "get", "pods", "-A", "-o", "wide"))
		t.Log("events:\n" + tail(c.say("kubectl", "get", "events", "-A", "--sort-by=.lastTimestamp", "-o",
			"custom-columns=:involvedObject.name,:type,:reason,:message", "--no-headers"), 25, nil))
		for _, previous := range []string{"--previous=false", "--previous=true"} {
			t.Log("agent "+previous+":\n", c.say("kubectl", "-n", "meshcni-system", "logs", "-l", "app.kubernetes.io/name=meshcni", "--tail=25", "--prefix", previous))
		}
		for file, what := range map[string]*regexp.Regexp{
			"/run/meshcni/plugin.log":       nil,
			machine.Dir + "/kubelet.log":    regexp.MustCompile(`^[EF]\d.*\] "?([^Ee]|E[^v]|e[^v])`),
			machine.Dir + "/containerd.log": regexp.MustCompile(`level=(error|fatal)`),
		} {
			text, err := os.ReadFile(file)
			if err != nil {
				text = []byte(err.Error())
			}
			t.Log(file + ":\n" + tail(string(text), 12, what))
		}
	})
}

func (c *Cluster) say(name string, args ...string) string {
	out, err := c.Try(name, args...)
	if err != nil {
		return strings.TrimSpace(out + " (" + err.Error() + ")")
	}
	return strings.TrimSpace(out)
}

// tail returns the last lines that match, each cut to what can be read.
func tail(text string, lines int, matching *regexp.Regexp) string {
	var kept []string
	for _, l := range strings.Split(strings.TrimSpace(text), "\n") {
		if matching == nil || matching.MatchString(l) {
			kept = append(kept, l[:min(len(l), 600)])
		}
	}
	return strings.Join(kept[max(0, len(kept)-lines):], "\n")
}

// keepLogs copies the logs of a failed run to where they outlive the node.
func keepLogs() {
	to := machine.Cache("e2e", "logs")
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
