package kuma_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/dialect/kuma"
)

// FuzzConfig: whatever a pod says, it is refused or its rules render.
func FuzzConfig(f *testing.F) {
	f.Add("redirect: {dns: {enabled: true, captureAll: true}, vnet: {networks: [\"eth1:10.0.0.0/8\"]}}", "tcp:22,80-90:1000-2000;53:1", "10.0.0.1,::1", "22, 80")
	f.Add("kumaDPUser: 1\nlog: {enabled: true, level: 7}", "*:*:1", "", "")
	f.Add("redirect: {inbound: {includePorts: \"80\"}, outbound: {enabled: false}}", ";", ",", ",")
	f.Fuzz(func(t *testing.T, config, users, ips, ports string) {
		pod := meshed(func(p *corev1.Pod) {
			p.Annotations[kuma.Config] = config
			p.Annotations[kuma.ExcludeOutboundPortsForUIDs] = users
			p.Annotations[kuma.ExcludeInboundIPs], p.Annotations[kuma.ExcludeOutboundIPs] = ips, ips
			p.Annotations[kuma.ExcludeInboundPorts], p.Annotations[kuma.ExcludeOutboundPorts] = ports, ports
		})
		built, err := kuma.New().Redirect(pod, nil, dialecttest.Addrs())
		if err != nil {
			return
		}
		if _, err := built.Redirect.Ruleset(); err != nil {
			t.Errorf("what is accepted does not render: %v", err)
		}
	})
}
