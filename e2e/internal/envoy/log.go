package envoy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// Entry is what Envoy says of one request of HTTP, or of one connection of all else when it has ended.
type Entry struct {
	Listener string // outbound, inbound, service, direct, health, metrics, blackhole, dns-tcp
	Kind     string // http or tcp
	Remote   string // the peer, as Envoy takes it
	Direct   string // the peer of the socket itself
	Original string // where the connection was to go
	Socket   string // the address of the socket that took it
	Upstream string // where Envoy sent it on to
	Source   string // from which address
	Protocol string // HTTP/1.1, HTTP/2
	Code     int
	Flags    string // why it failed; "-" is not
	Path     string
	Name     string // TLS's server name
	Received int64
	Sent     int64
}

// Envoy's words for an entry's fields (docs/envoy/latest/configuration/observability/access_log/usage).
var format = object{
	"remote": "%DOWNSTREAM_REMOTE_ADDRESS%", "direct": "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS%",
	"original": "%DOWNSTREAM_LOCAL_ADDRESS%", "socket": "%DOWNSTREAM_DIRECT_LOCAL_ADDRESS%",
	"upstream": "%UPSTREAM_HOST%", "source": "%UPSTREAM_LOCAL_ADDRESS%",
	"protocol": "%PROTOCOL%", "code": "%RESPONSE_CODE%", "flags": "%RESPONSE_FLAGS%", "path": "%REQ(:PATH)%",
	"name": "%REQUESTED_SERVER_NAME%", "received": "%BYTES_RECEIVED%", "sent": "%BYTES_SENT%",
}

func (c config) accessLog(listener, kind string) list {
	fields := object{"listener": listener, "kind": kind}
	for k, v := range format {
		fields[k] = v
	}
	return list{typed("envoy.access_loggers.file", types+"envoy.extensions.access_loggers.file.v3.FileAccessLog", object{
		"path": c.log, "log_format": object{"json_format": fields},
	})}
}

// Entries is the access log until now; Envoy writes it with a small delay.
func (p *Proxy) Entries() ([]Entry, error) {
	text, err := os.ReadFile(p.accessLog)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("access log has %q: %w", line, err)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// Await returns the entries that are wanted once there are n of them.
func (p *Proxy) Await(n int, want func(Entry) bool) ([]Entry, error) {
	var found []Entry
	err := proctest.Poll(patience, func() error {
		entries, err := p.Entries()
		if err != nil {
			return err
		}
		found = nil
		for _, e := range entries {
			if want(e) {
				found = append(found, e)
			}
		}
		if len(found) < n {
			last := entries[max(0, len(entries)-5):]
			return fmt.Errorf("the access log has %d such entries and not %d; its last are %+v", len(found), n, last)
		}
		return nil
	})
	return found, err
}

// patience is for what Envoy does on a busy machine.
const patience = netnstest.Patience
