package cluster_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// taintController runs the controller of the release on another machine, as it were: one that boots with the node does not see it boot.
func taintController(t *testing.T, c *cluster) *proctest.Process {
	t.Helper()
	const name = "meshcni-node-taint"
	c.Run(t, "kubectl", "--namespace", system, "scale", "deployment", name, "--replicas=0")
	c.Run(t, "kubectl", "--namespace", system, "wait", "--for=delete", "pod", "-l", "app.kubernetes.io/component=taint", "--timeout=5m")
	token := c.Run(t, "kubectl", "--namespace", system, "create", "token", name, "--duration=2h")
	var args []string
	require.NoError(t, json.Unmarshal([]byte(c.Run(t, "kubectl", "--namespace", system, "get", "deployment", name, "-o", "jsonpath={.spec.template.spec.containers[0].args}")), &args))
	program := filepath.Join(machine.Dir, "meshcni-taint")
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/usr/local/bin/meshcni-taint", agentPid(t)))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, text, 0o755))
	args = append(args, "--kubeconfig="+c.kubeconfig(t, name, "token: "+token), "--pod-namespace="+system, "--health-address=", "--metrics-address=")
	require.NoError(t, c.Start(name, program, args...))
	p := c.Processes[name]
	t.Cleanup(p.Kill)
	return p
}

// TestReboots: pods of the mesh that start with the node, and that are made meanwhile, race the agent, and the network writes its file
// when it likes. With a list of our own none of them ever makes a connection past its proxy, with the taint or without. With neither
// some do, so the test would see it; with the taint alone only those that the node had already. The tag long makes it a hundred boots
// in all.
func TestReboots(t *testing.T) {
	c := sharedCluster(t)
	rounds := longtest.Rounds(3, 25)
	for _, test := range longtest.Of([]reboots{{name: "own list and taint", ownFile: "true", taint: true}},
		reboots{name: "neither", ownFile: "false", uncaptured: true},
		reboots{name: "taint alone", ownFile: "false", taint: true, uncaptured: true},
		reboots{name: "own list", ownFile: "true"},
		reboots{name: "own list since a fight", ownFile: "auto"},
		reboots{name: "own list since a fight and taint", ownFile: "auto", taint: true},
	) {
		step(t, c, test.name, func(t *testing.T) { test.run(t, c, rounds) })
	}
}

// logged is an error until a program's log has a word.
func logged(p *proctest.Process, word string) error {
	if log := p.Log(); !strings.Contains(log, word) {
		return fmt.Errorf("no %q in its log: %s", word, log)
	}
	return nil
}

type reboots struct {
	name, ownFile string
	taint         bool
	uncaptured    bool // pods are seen that are
}

func (r reboots) run(t *testing.T, c *cluster, rounds int) {
	y := newYard(t, c, "reboots-"+strings.ReplaceAll(r.name, " ", "-"))
	install(t, c, "--set", "repair.mode=none,cni.ownFile="+r.ownFile+",taint.enabled="+fmt.Sprint(r.taint))
	if r.ownFile == "auto" {
		stop := fightOver(t)
		eventually(t, soon, "the agent takes a list of its own", func() error { _, err := os.Stat(ownList); return err })
		stop()
		rolledOut(t, c)
	}
	y.populate(t)
	var controller *proctest.Process
	if r.taint {
		controller = taintController(t, c)
	}
	if r.uncaptured {
		y.boot(t)
		assert.Subset(t, y.settled(t, y.inMesh()...), y.inMesh()[:3], "pods that the node had")
		if r.taint {
			require.NoError(t, controller.WaitFor(netnstest.Patience, func() error { return logged(controller, "node-booted") }))
			y.Apply(t, y.witness("late", true))
			y.assertCaptured(t, "late")
		}
		y.leave(t)
		return
	}
	for range rounds {
		start := time.Now()
		y.boot(t)
		y.assertCaptured(t, y.inMesh()...)
		mtu := fmt.Sprintf(`"mtu": %d`, 1300+y.boots)
		if strings.Contains(fileText(t, confList), mtu) {
			eventually(t, soon, "the agent follows the network", func() error {
				if text := fileText(t, ownList); !strings.Contains(text, mtu) {
					return errors.New(text)
				}
				return nil
			})
		}
		stage(fmt.Sprintf("%s: boot %d of %d, %s", r.name, y.boots, rounds, networks[(y.boots-1)%len(networks)].name), start)
	}
	if r.taint {
		put := strings.Count(controller.Log(), "node-booted")
		t.Logf("the taint was put back at %d of %d boots", put, rounds)
		assert.Positive(t, put, controller.Log())
	}
	y.leave(t)
}
