// Package hook captures and holds pods at the container runtime's own hook, which no network's file can remove.
//
// A pod that the plugin's ADD has dealt with costs a look at its record. Of any other the plugin's own ADD is run in this process, with the
// namespace, the addresses and the annotations that the runtime names: one judgement, one plan, one refusal, whoever asks.
package hook
