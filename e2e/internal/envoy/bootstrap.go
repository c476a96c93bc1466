package envoy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

type (
	object = map[string]any
	list   = []any
)

// The packages of Envoy's messages (envoyproxy.io/docs/envoy/latest/api-v3).
const (
	types     = "type.googleapis.com/"
	filters   = types + "envoy.extensions.filters."
	hcm       = filters + "network.http_connection_manager.v3.HttpConnectionManager"
	tcpProxy  = filters + "network.tcp_proxy.v3.TcpProxy"
	inherited = types + "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
)

const blackhole = "blackhole"

// Bootstrap is Envoy's configuration. The access log goes to a file, one JSON object a line; see [Entry].
func (s Shape) Bootstrap(accessLog string) object {
	c := config{s, accessLog}
	listeners := list{c.outbound(), c.inbound()}
	for _, vip := range slices.SortedFunc(maps.Keys(s.Services), netip.AddrPort.Compare) {
		listeners = append(listeners, c.service(vip))
	}
	for _, port := range slices.Sorted(maps.Keys(s.Direct)) {
		listeners = append(listeners, listener("direct", loopback, port, object{
			"listener_filters": inspectors(), "filter_chains": c.protocols("direct", directName(port), nil),
		}))
	}
	if s.Health != 0 {
		listeners = append(listeners, c.status("health", s.Health, object{"direct_response": object{"status": 200}}))
	}
	if s.Metrics != 0 {
		route := object{"route": object{"cluster": "admin", "prefix_rewrite": "/stats/prometheus"}}
		listeners = append(listeners, c.status("metrics", s.Metrics, route))
	}
	if s.DNS != 0 {
		listeners = append(listeners, c.dnsTCP())
		for _, ip := range loopback {
			listeners = append(listeners, c.dnsUDP(ip))
		}
	}
	return object{
		"node":  object{"id": s.Name, "cluster": s.Name},
		"admin": object{"address": socket("127.0.0.1", admin)},
		"static_resources": object{
			"listeners": listeners,
			"clusters":  c.clusters(),
		},
	}
}

type config struct {
	Shape
	log string
}

var (
	anyAddress = []string{"0.0.0.0", "::"}
	loopback   = []string{"127.0.0.1", "::1"}
)

func socket(ip string, port uint16) object {
	return object{"socket_address": object{"address": ip, "port_value": port}}
}

func udpSocket(ip string, port uint16) object {
	return object{"socket_address": object{"protocol": "UDP", "address": ip, "port_value": port}}
}

// typed is an extension's configuration.
func typed(name, message string, fields object) object {
	config := maps.Clone(fields)
	if config == nil {
		config = object{}
	}
	config["@type"] = message
	return object{"name": name, "typed_config": config}
}

func listener(name string, ips []string, port uint16, more object) object {
	l := object{
		"name": name, "address": socket(ips[0], port),
		"additional_addresses": list{object{"address": socket(ips[1], port)}},
		// Who waits for the server to speak first has to wait for these filters.
		"listener_filters_timeout": "0s", "continue_on_listener_filters_timeout": true,
	}
	maps.Copy(l, more)
	return l
}

func listenerFilter(name, message string, fields object) object {
	return typed("envoy.filters.listener."+name, filters+"listener."+name+".v3."+message, fields)
}

// outbound hands a connection to the listener of its original destination, if there is one.
func (c config) outbound() object {
	filters := list{listenerFilter("original_dst", "OriginalDst", nil)}
	return listener("outbound", anyAddress, c.Outbound, object{
		"traffic_direction": "OUTBOUND", "use_original_dst": true,
		"listener_filters": append(filters, inspectors()...),
		"filter_chains":    append(list{c.direct(c.Outbound)}, c.protocols("outbound", "passthrough", nil)...),
	})
}

// inbound speaks to the application.
func (c config) inbound() object {
	filters := list{listenerFilter("original_dst", "OriginalDst", nil)}
	more := object{"traffic_direction": "INBOUND"}
	chains := list{c.direct(c.Inbound)}
	if c.Transparent {
		// The mark is that of Istio's rules, by which the application's answers find their way back here.
		filters = append(filters, listenerFilter("original_src", "OriginalSrc", object{"mark": 1337}))
		more["transparent"] = true
	}
	for _, port := range c.Local {
		chains = append(chains, c.protocols("inbound", local(port), object{"destination_port": port})...)
	}
	switch {
	case c.LocalApp.IsValid():
		chains = c.protocols("inbound", "app", nil)
	default:
		for i, prefix := range anyAddress {
			match := object{"prefix_ranges": list{object{"address_prefix": prefix, "prefix_len": 0}}}
			chains = append(chains, c.protocols("inbound", inboundCluster(i), match)...)
		}
	}
	more["listener_filters"], more["filter_chains"] = append(filters, inspectors()...), chains
	return listener("inbound", anyAddress, c.Inbound, more)
}

func inboundCluster(family int) string { return fmt.Sprint("inbound-", []int{4, 6}[family]) }
func local(port uint16) string         { return fmt.Sprint("local-", port) }
func directName(port uint16) string    { return fmt.Sprint("direct-", port) }
func serviceName(a netip.AddrPort) string {
	return "service-" + a.String()
}

// service listens by no socket of its own: the outbound listener hands it connections.
func (c config) service(vip netip.AddrPort) object {
	return object{
		"name": serviceName(vip), "address": socket(vip.Addr().String(), vip.Port()), "bind_to_port": false,
		"listener_filters_timeout": "0s", "continue_on_listener_filters_timeout": true,
		"traffic_direction": "OUTBOUND", "listener_filters": inspectors(),
		"filter_chains": c.protocols("service", serviceName(vip), nil),
	}
}

func (c config) status(name string, port uint16, action object) object {
	route := object{"match": object{"prefix": "/"}}
	maps.Copy(route, action)
	return listener(name, anyAddress, port, object{"filter_chains": list{object{"filters": list{c.http(name, route)}}}})
}

func inspectors() list {
	return list{listenerFilter("tls_inspector", "TlsInspector", nil), listenerFilter("http_inspector", "HttpInspector", nil)}
}

// direct refuses who speaks to the listener's own port: the original destination would be the listener itself.
func (c config) direct(port uint16) object {
	return object{
		"filter_chain_match": object{"destination_port": port},
		"filters":            list{c.tcp("blackhole", blackhole)},
	}
}

// protocols is a listener's chains for one cluster: HTTP request by request, TLS and all else as bytes. Envoy takes the
// chain of the narrowest match and no other, so each transport has one that matches whatever is in it.
func (c config) protocols(name, cluster string, match object) list {
	route := object{"match": object{"prefix": "/"}, "route": object{"cluster": cluster, "timeout": "0s"}}
	chain := func(filter object, transport string, protocols ...any) object {
		m := object{"transport_protocol": transport, "application_protocols": protocols}
		maps.Copy(m, match)
		return object{"filter_chain_match": m, "filters": list{filter}}
	}
	return list{
		chain(c.http(name, route), "raw_buffer", "http/1.0", "http/1.1", "h2c"),
		chain(c.tcp(name, cluster), "raw_buffer"),
		chain(c.tcp(name, cluster), "tls"),
	}
}

func (c config) http(name string, route object) object {
	return typed("envoy.filters.network.http_connection_manager", hcm, object{
		"stat_prefix": name, "access_log": c.accessLog(name, "http"), "use_remote_address": false,
		"upgrade_configs": list{object{"upgrade_type": "websocket"}},
		"route_config": object{"virtual_hosts": list{object{
			"name": name, "domains": list{"*"}, "routes": list{route},
		}}},
		"http_filters": list{typed("envoy.filters.http.router", filters+"http.router.v3.Router", nil)},
	})
}

func (c config) tcp(name, cluster string) object {
	return typed("envoy.filters.network.tcp_proxy", tcpProxy, object{
		"stat_prefix": name, "cluster": cluster, "access_log": c.accessLog(name, "tcp"),
	})
}

func (c config) clusters() list {
	clusters := list{
		originalDst("passthrough", nil),
		object{"name": blackhole, "type": "STATIC"},
		static("admin", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), admin)),
	}
	for i := range anyAddress {
		var bind object
		if len(c.Source) > i && !c.Transparent {
			bind = object{"source_address": object{"address": c.Source[i].String(), "port_value": 0}}
		}
		clusters = append(clusters, originalDst(inboundCluster(i), bind))
	}
	for vip, endpoint := range c.Services {
		clusters = append(clusters, static(serviceName(vip), endpoint))
	}
	for port, endpoint := range c.Direct {
		clusters = append(clusters, static(directName(port), endpoint))
	}
	for _, port := range c.Local {
		clusters = append(clusters, static(local(port), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)))
	}
	if c.LocalApp.IsValid() {
		clusters = append(clusters, static("app", c.LocalApp))
	}
	if c.DNS != 0 {
		clusters = append(clusters, originalDst("dns", nil))
	}
	return clusters
}

func originalDst(name string, bind object) object {
	cluster := object{
		"name": name, "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "5s",
		"typed_extension_protocol_options": sameProtocol(),
	}
	if bind != nil {
		cluster["upstream_bind_config"] = bind
	}
	return cluster
}

func static(name string, endpoint netip.AddrPort) object {
	return object{
		"name": name, "type": "STATIC", "connect_timeout": "5s", "typed_extension_protocol_options": sameProtocol(),
		"load_assignment": object{"cluster_name": name, "endpoints": list{object{"lb_endpoints": list{
			object{"endpoint": object{"address": socket(endpoint.Addr().String(), endpoint.Port())}},
		}}}},
	}
}

// sameProtocol speaks to the server as the client does.
func sameProtocol() object {
	return object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
		"@type": inherited,
		"use_downstream_protocol_config": object{
			"http_protocol_options": object{}, "http2_protocol_options": object{},
		},
	}}
}

// dnsTCP passes questions over TCP on to the server that was asked.
func (c config) dnsTCP() object {
	return listener("dns-tcp", loopback, c.DNS, object{
		"listener_filters": list{listenerFilter("original_dst", "OriginalDst", nil)},
		"filter_chains":    list{object{"filters": list{c.tcp("dns-tcp", "dns")}}},
	})
}

// dnsUDP answers from the table of names.
func (c config) dnsUDP(ip string) object {
	domains := list{}
	for _, name := range slices.SortedFunc(maps.Keys(c.Names), cmp.Compare[string]) {
		addresses := list{}
		for _, a := range c.Names[name] {
			addresses = append(addresses, a.String())
		}
		domains = append(domains, object{"name": name, "endpoint": object{"address_list": object{"address": addresses}}})
	}
	return object{
		"name": "dns-udp-" + ip, "address": udpSocket(ip, c.DNS),
		"listener_filters": list{typed("envoy.filters.udp.dns_filter", filters+"udp.dns_filter.v3.DnsFilterConfig", object{
			"stat_prefix":   "dns",
			"server_config": object{"inline_dns_table": object{"virtual_domains": domains}},
		})},
	}
}
