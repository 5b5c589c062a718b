//! The API as its callers see it: requests in, answers out, over a journal in memory, real rows, and a decider that
//! answers from a table.

mod bad_input;
mod cloudevents;
mod links;
mod listener;
mod published;
mod rates;
mod reads;
mod streams;
mod streams_of_http2;
mod world;
mod writes;
