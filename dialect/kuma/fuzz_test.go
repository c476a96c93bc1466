package kuma_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/status"
)

// FuzzConfig: whatever a pod says, it is refused or its rules render.
func FuzzConfig(f *testing.F) {
	f.Add("redirect: {dns: {enabled: true, captureAll: true}, vnet: {networks: [\"eth1:10.0.0.0/8\"]}}", "tcp:22,80-90:1000-2000;53:1", "10.0.0.1,::1", "22, 80", "9000", "enabled")
	f.Add("kumaDPUser: 1\nlog: {enabled: true, level: 7}", "*:*:1", "::ffff:10.0.0.0/104", "", "0", "disabled")
	f.Add("redirect: {inbound: {includePorts: \"80\"}, outbound: {enabled: false}}", ";", ",", ",", "15001", "true")
	f.Add("", "tcp:22:1", "::ffff:0:0/96", "22", "16053", "true")
	f.Add("\"\\x64ryRun\": true\nunknown: {a: [1]}", "", "::ffff:0:0/95", "", "", "")
	f.Fuzz(func(t *testing.T, config, users, ips, ports, port, on string) {
		pod := meshed(func(p *corev1.Pod) {
			p.Annotations[kuma.Config] = config
			for _, key := range []string{"kuma.io/transparent-proxying-inbound-port", "kuma.io/transparent-proxying-inbound-v6-port", "kuma.io/builtin-dns-port", "kuma.io/virtual-probes-port"} {
				p.Annotations[key] = port
			}
			p.Annotations["kuma.io/builtin-dns"], p.Annotations["kuma.io/virtual-probes"] = on, on
			p.Annotations["traffic.kuma.io/exclude-outbound-ports-for-uids"] = users
			p.Annotations["traffic.kuma.io/exclude-inbound-ips"], p.Annotations["traffic.kuma.io/exclude-outbound-ips"] = ips, ips
			p.Annotations["traffic.kuma.io/exclude-inbound-ports"], p.Annotations["traffic.kuma.io/exclude-outbound-ports"] = ports, ports
		})
		if d := kuma.New().Decide(pod, nil); !d.Selected && d.Reason != status.CodeDryRun {
			t.Errorf("the pod is out for another reason than its configuration: %+v", d)
		}
		built, err := kuma.New().Redirect(pod, nil, dialecttest.Addrs())
		if err != nil {
			return
		}
		if _, err := built.Redirect.Ruleset(); err != nil {
			t.Errorf("what is accepted does not render: %v", err)
		}
	})
}
