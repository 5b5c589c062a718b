\set category :client_id % :categories
SELECT append(:category, :client_id, :version, 'appended', :data) AS version \gset
