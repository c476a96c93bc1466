package serve

import (
	"cmp"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
)

// handlers returns what is served at which address.
func (o Options) handlers() map[string]http.Handler {
	all := map[string]http.Handler{o.HealthAddress: o.Handler(false), o.MetricsAddress: o.Handler(true)}
	delete(all, "")
	address := cmp.Or(o.HealthAddress, o.MetricsAddress)
	host, port, err := net.SplitHostPort(address)
	if o.Local == nil || err != nil { // whoever listens says what is wrong with the address
		return all
	}
	mux := http.NewServeMux()
	mux.Handle("GET /v1/", loopbackOnly(o.Local))
	if has127(host) {
		mux.Handle("/", all[address])
	} else {
		address = net.JoinHostPort("127.0.0.1", port)
		if other, ok := all[address]; ok {
			mux.Handle("/", other)
		}
	}
	all[address] = mux
	return all
}

// Addresses returns where is served.
func (o Options) Addresses() []string { return slices.Sorted(maps.Keys(o.handlers())) }

// HealthAddresses returns those at which /healthz, /readyz and what is for the loopback interface alone are asked for.
func (o Options) HealthAddresses() []string {
	return slices.DeleteFunc(o.Addresses(), func(a string) bool { return o.HealthAddress == "" || a == o.MetricsAddress && a != o.HealthAddress })
}

// has127 reports whether a listener at the host is one of the loopback interface too.
func has127(host string) bool {
	if host == "" || host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && (a.IsLoopback() || a.IsUnspecified())
}

// loopbackOnly refuses connections of which either end is no address of the loopback interface. The kernel drops packets with
// such addresses that come by another one (RFC 1122, 3.2.1.3), unless route_localnet lets the node's neighbours forge the
// destination; then the source is theirs.
func loopbackOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if local == nil || !loopback(local.String()) || !loopback(r.RemoteAddr) {
			http.NotFound(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func loopback(address string) bool {
	a, err := netip.ParseAddrPort(address)
	return err == nil && a.Addr().Unmap().IsLoopback()
}
