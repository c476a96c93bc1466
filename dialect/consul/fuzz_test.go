package consul_test

import (
	"testing"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/dialecttest"
)

// FuzzConfig: whatever the JSON says, the pod is refused or its rules render.
func FuzzConfig(f *testing.F) {
	f.Add(`{"ProxyUserID":"5995","ProxyInboundPort":20000,"ExcludeOutboundCIDRs":["10.0.0.0/8","::1"],"ExcludeUIDs":["1-2"]}`, "true")
	f.Add(`{"ProxyUserID":"1","ProxyInboundPort":1,"ConsulDNSIP":"10.0.0.1","ConsulDNSPort":53}`, "false")
	f.Add(`null`, "1")
	f.Add(`{"ProxyUserID":"101","ProxyInboundPort":25018,"ExcludeUIDs":null}`, "fd00::2")
	f.Fuzz(func(t *testing.T, config, dualStack string) {
		sandbox, ok := consul.New().ForSandbox(map[string]string{"CONSUL_IPTABLES_CONFIG": config, "IP": dualStack})
		if !ok {
			t.Fatal("the key is there")
		}
		for _, d := range []dialect.Dialect{consul.New(), sandbox} {
			built, err := d.Redirect(meshed(config, dualStack), nil, dialecttest.Addrs())
			if err != nil {
				continue
			}
			if _, err := built.Redirect.Ruleset(); err != nil {
				t.Errorf("what is accepted does not render: %v", err)
			}
		}
	})
}
