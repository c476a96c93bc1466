// Package netnstest is a small world of network namespaces for testing redirection on the real kernel: a pod with an
// application and a proxy, the outside, and a virtual machine behind the pod.
//
//	w := netnstest.NewWorld(t, netnstest.Options{})
//	// … put rules into w.Pod, or give w.Pod.Path() to a CNI plugin …
//	fates := w.Run(netnstest.Probes(netnstest.Plan{}))
//	// fates["pod tcp 1000/1000 -> 10.96.5.5:80"] == "proxy:15001 orig=10.96.5.5:80"
//
// A [Probe] is a connection or a datagram with an owner (UID and GID), a source and a destination. Its fate is who
// answered:
//
//	out:80 orig=10.96.5.5:80            TCP, answered by the outside on port 80; orig is the destination as seen there:
//	                                    SO_ORIGINAL_DST, else the local address
//	proxy:15001 orig=10.96.5.5:80       redirected to the proxy's outbound port
//	app:8080 orig=10.244.1.5:8080       delivered to the application
//	out:53/udp                          UDP: only who answered
//	refused, reset, unreachable         nobody listens, the connection broke, there is no route
//	timeout                             no answer within Options.Patience: dropped
//	error: …                            the probe could not be sent
//
// # The world
//
// pod: eth0 10.244.1.5/24 and fd00:10:244::5/64 with default routes, net1 192.168.77.2/24 and fd00:77::2/64, virt0
// 10.99.0.1/24; it forwards IPv4. out: the other ends 10.244.1.1, fd00:10:244::1, 192.168.77.1, fd00:77::1, and on lo
// 10.96.5.5, 10.96.0.10, 198.51.100.10, 172.16.3.3, fd00:96::5, fd00:96::10, 2001:db8::10, 2001:db8:1::3. vm: 10.99.0.2/24
// behind virt0.
//
// Listeners, on all addresses of both families. pod: the proxy's (see [Options]), and the application's (1000/1000) on
// tcp 22 443 7070 8080 9090 and udp 5000. out: tcp 53 80 443 3306 6379 7070 8080 9090 15008, udp 53 5353 8125.
//
// No packet leaves the world, nothing outside it changes, and no program is run. Making one takes some tens of
// milliseconds, running the standard probes less.
//
// A test that fails logs what its namespaces have by then: addresses, routes, rules and tracked connections, as far as
// ip, nft and iptables-legacy are there to tell.
//
// # Limits
//
// It needs Linux, root and IPv6. The proxy answers and forwards nothing. Other platforms have only probes and [Require].
package netnstest
